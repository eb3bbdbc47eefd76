// Checks against references of trained models: greedy continuations and negative log-likelihood.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/json_file.h"
#include "cli/progress.h"
#include "cli/verify.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

constexpr double kNllTolerance = 1e-3;
// Below this gap between the two best logits of the reference, float32 rounding may choose either.
constexpr double kGreedyMargin = 1e-3;

struct GreedyCase {
  std::vector<base::TokenId> prompt;
  std::vector<base::TokenId> output;
  double margin = 0.0;
};

absl::StatusOr<std::vector<GreedyCase>> ReadGreedy(const std::string& path, std::int32_t vocab_size) {
  COMOE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
  if (!document.is_array() || document.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not an array of cases"));
  }
  std::vector<GreedyCase> cases;
  for (const nlohmann::json& item : document) {
    const std::string where = absl::StrCat(path, "[", cases.size(), "]");
    if (!item.is_object() || !item.contains("prompt_ids") || !item.contains("output_ids") ||
        !item.contains("min_top2_margin") || !item["min_top2_margin"].is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " lacks prompt_ids, output_ids or min_top2_margin"));
    }
    GreedyCase greedy;
    COMOE_ASSIGN_OR_RETURN(greedy.prompt, TokenIds(item["prompt_ids"], vocab_size, where + ".prompt_ids"));
    COMOE_ASSIGN_OR_RETURN(greedy.output, TokenIds(item["output_ids"], vocab_size, where + ".output_ids"));
    greedy.margin = item["min_top2_margin"].get<double>();
    cases.push_back(std::move(greedy));
  }
  return cases;
}

// Index of the first token that differs, or -1.
absl::StatusOr<std::int64_t> FirstDifference(const VerifyContext& context, const GreedyCase& greedy) {
  api::SamplingParams sampling;
  sampling.temperature = 0.0F;
  context.sequence.Reset();
  std::vector<base::TokenId> next = greedy.prompt;
  for (std::size_t i = 0; i < greedy.output.size(); ++i) {
    COMOE_ASSIGN_OR_RETURN(const api::SpanResult result, context.sequence.AppendAndSample(next, sampling));
    if (result.token != greedy.output[i]) {
      return static_cast<std::int64_t>(i);
    }
    next = {greedy.output[i]};
  }
  return -1;
}

}  // namespace

absl::StatusOr<std::vector<Check>> VerifyGreedy(const VerifyContext& context) {
  COMOE_ASSIGN_OR_RETURN(
      const std::vector<GreedyCase> cases,
      ReadGreedy(context.directory + "/golden_greedy.json", context.engine.model_info().vocab_size));
  std::size_t equal = 0;
  std::size_t excused = 0;
  std::string first_failure;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    COMOE_ASSIGN_OR_RETURN(const std::int64_t difference, FirstDifference(context, cases[i]));
    if (difference < 0) {
      ++equal;
    } else if (cases[i].margin < kGreedyMargin) {
      ++excused;
    } else if (first_failure.empty()) {
      first_failure =
          absl::StrFormat("; case %d differs at token %d (margin %.4f)", i, difference, cases[i].margin);
    }
  }
  return std::vector<Check>{
      {"golden_greedy.json", equal + excused == cases.size(),
       absl::StrCat(equal, " of ", cases.size(), " continuations equal",
                    excused > 0 ? absl::StrCat(", ", excused,
                                               " more differ where the reference's margin is below 1e-3")
                                : "",
                    first_failure)}};
}

absl::StatusOr<NllFile> ReadNllFile(const std::string& path, std::int32_t vocab_size) {
  COMOE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
  if (!document.is_object() || !document.contains("ids") || !document["ids"].is_array() ||
      document["ids"].empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ids is missing or empty: it is an array of arrays of token ids"));
  }
  NllFile file;
  for (const nlohmann::json& item : document["ids"]) {
    COMOE_ASSIGN_OR_RETURN(std::vector<base::TokenId> ids,
                           TokenIds(item, vocab_size, absl::StrCat(path, ": ids[", file.ids.size(), "]")));
    if (ids.size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ids[", file.ids.size(), "] has ", ids.size(),
                                                     " tokens: at least 2 are needed"));
    }
    file.ids.push_back(std::move(ids));
  }
  for (const auto& [key, value] : document.items()) {
    if (key.size() >= 3 && key.compare(key.size() - 3, 3, "nll") == 0 && value.is_number()) {
      file.reference = value.get<double>();
      file.has_reference = true;
    }
  }
  return file;
}

absl::StatusOr<double> MeanNll(const VerifyContext& context,
                               const std::vector<std::vector<base::TokenId>>& sequences,
                               std::int64_t* tokens) {
  Progress progress("evaluating", context.quiet);
  double sum = 0.0;
  *tokens = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<base::TokenId>& ids = sequences[s];
    context.sequence.Reset();
    COMOE_RETURN_IF_ERROR(
        context.sequence.AppendWithLogits(ids, [&](std::int64_t position, absl::Span<const float> logits) {
          const auto next = static_cast<std::size_t>(position) + 1;
          if (next < ids.size()) {
            sum += NegativeLogLikelihood(logits, ids[next]);
            ++*tokens;
          }
        }));
    progress.Update(s + 1, sequences.size(), "sequences");
  }
  return sum / static_cast<double>(*tokens);
}

absl::StatusOr<std::vector<Check>> VerifyNll(const VerifyContext& context) {
  const std::string path = context.directory + "/golden_nll.json";
  COMOE_ASSIGN_OR_RETURN(const NllFile file, ReadNllFile(path, context.engine.model_info().vocab_size));
  if (!file.has_reference) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no number whose name ends in nll"));
  }
  std::int64_t tokens = 0;
  COMOE_ASSIGN_OR_RETURN(const double nll, MeanNll(context, file.ids, &tokens));
  return std::vector<Check>{
      {"golden_nll.json", std::fabs(nll - file.reference) < kNllTolerance,
       absl::StrFormat("NLL %.6f, reference %.6f, difference %+.1e, bound %.0e, %d tokens", nll,
                       file.reference, nll - file.reference, kNllTolerance, tokens)}};
}

}  // namespace comoe::cli
