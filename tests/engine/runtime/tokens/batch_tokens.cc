// How far a sequence's results depend on who is in the step beside it. Kernels change over with the number of
// rows (cuda_launch.h): products of up to kCudaFewRows rows, of up to 64, and of more, by cuBLAS where it is
// there; the experts' by their own rows; attention by whether a sequence has one row or several.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/cuda/cuda_launch.h"
#include "tests/engine/runtime/tokens/token_runs.h"

namespace comoe::testing {
namespace {

constexpr std::int64_t kSequences = 16;
constexpr std::int64_t kPrompt = 150;  // of the sequence that is cut into chunks
constexpr std::int64_t kFiller = 32;   // rows of a span that fills a step up
constexpr char kCublas[] = "COMOE_CUBLAS";

// Hides cuBLAS from engines made while it lives.
class WithoutCublas {
 public:
  WithoutCublas() {
    if (const char* before = std::getenv(kCublas); before != nullptr) {
      before_ = before;
    }
    ::setenv(kCublas, "/none/libcublas.so", 1);
  }
  ~WithoutCublas() {
    if (before_.has_value()) {
      ::setenv(kCublas, before_->c_str(), 1);
    } else {
      ::unsetenv(kCublas);
    }
  }
  WithoutCublas(const WithoutCublas&) = delete;
  WithoutCublas& operator=(const WithoutCublas&) = delete;

 private:
  std::optional<std::string> before_;
};

// Where blas.cu would find it.
bool CublasIsThere() {
  const char* path = std::getenv(kCublas);
  for (const char* name : {path != nullptr ? path : "libcublas.so.13", "libcublas.so.12",
                           "/usr/local/cuda/lib64/libcublas.so.13"}) {
    if (void* library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL); library != nullptr) {
      return true;  // and stays loaded, as it does in the plugin
    }
    if (path != nullptr) {
      return false;
    }
  }
  return false;
}

using Rows = std::vector<std::vector<float>>;  // [row][V]

struct Context {
  api::Engine& engine;
  std::vector<std::vector<base::TokenId>> prompts;
  std::int64_t decodes = 0;
};

// Prompts one after the other, in one chunk each; then all sequences, `batch` of them in a step. `forced`, if
// given, follows the prompts instead of what is drawn. Logits of each sequence's decodes, and the tokens.
absl::StatusOr<Drawn> Decode(const Context& context, std::int64_t batch, const Drawn* forced) {
  Stepper stepper(context.engine, kMaxSequences);
  Drawn drawn;
  drawn.tokens.resize(context.prompts.size());
  drawn.logits.resize(context.prompts.size());
  api::SamplingParams greedy;
  greedy.temperature = 0.0F;
  const auto next = [&](std::size_t s, std::size_t i) {
    return forced != nullptr ? forced->tokens[s][i] : drawn.tokens[s][i];
  };
  for (std::size_t s = 0; s < context.prompts.size(); ++s) {
    COMOE_ASSIGN_OR_RETURN(const auto results,
                           stepper.Step({{static_cast<std::int64_t>(s), 0, context.prompts[s],
                                          api::LogitsMode::kLast, greedy}}));
    drawn.tokens[s].push_back(*results.front().token);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(context.decodes); ++i) {
    for (std::size_t first = 0; first < context.prompts.size(); first += static_cast<std::size_t>(batch)) {
      const std::size_t end = std::min(context.prompts.size(), first + static_cast<std::size_t>(batch));
      std::vector<Piece> pieces;
      for (std::size_t s = first; s < end; ++s) {
        pieces.push_back({static_cast<std::int64_t>(s),
                          static_cast<std::int64_t>(context.prompts[s].size() + i),
                          {next(s, i)},
                          api::LogitsMode::kLast,
                          greedy});
      }
      COMOE_ASSIGN_OR_RETURN(const auto results, stepper.Step(pieces));
      for (std::size_t s = first; s < end; ++s) {
        const api::SpanResult& result = results[s - first];
        drawn.tokens[s].push_back(*result.token);
        drawn.logits[s].insert(drawn.logits[s].end(), result.logits.begin(), result.logits.end());
      }
    }
  }
  return drawn;
}

// Logits of every row of a prompt that comes in chunks of `chunk` rows.
absl::StatusOr<Rows> Chunked(const Context& context, std::int64_t chunk) {
  Stepper stepper(context.engine, kMaxSequences);
  const std::vector<base::TokenId>& prompt = context.prompts.front();
  const auto vocab = static_cast<std::size_t>(context.engine.model_info().vocab_size);
  Rows rows;
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(prompt.size()); at += chunk) {
    const auto end = std::min<std::int64_t>(at + chunk, static_cast<std::int64_t>(prompt.size()));
    COMOE_ASSIGN_OR_RETURN(
        const auto results,
        stepper.Step({{0, at, {prompt.begin() + at, prompt.begin() + end}, api::LogitsMode::kAll, {}}}));
    for (auto row = results.front().logits.begin(); row != results.front().logits.end();
         row += static_cast<std::ptrdiff_t>(vocab)) {
      rows.emplace_back(row, row + static_cast<std::ptrdiff_t>(vocab));
    }
  }
  return rows;
}

// The next row of one sequence, in a step of `rows` rows: its logits.
absl::StatusOr<std::vector<float>> Among(const Context& context, Stepper& stepper, std::int64_t rows) {
  const std::vector<base::TokenId>& prompt = context.prompts.front();
  std::vector<Piece> pieces = {
      {0, static_cast<std::int64_t>(prompt.size()) - 1, {prompt.back()}, api::LogitsMode::kLast, {}}};
  for (std::int64_t left = rows - 1, s = 1; left > 0; left -= kFiller, ++s) {
    Piece piece{s, 0, {}, api::LogitsMode::kNone, {}};
    for (std::int64_t i = 0; i < std::min(left, kFiller); ++i) {
      piece.tokens.push_back(prompt[static_cast<std::size_t>(i + s) % prompt.size()]);
    }
    pieces.push_back(std::move(piece));
  }
  COMOE_ASSIGN_OR_RETURN(auto results, stepper.Step(pieces));
  return std::move(results.front().logits);
}

// Sizes of step in classes that give a row the same bits, e.g. [[1, 2, 8], [9, 64], [65, 192]].
absl::StatusOr<nlohmann::json> RowClasses(const Context& context) {
  Stepper stepper(context.engine, kMaxSequences);
  const std::vector<base::TokenId>& prompt = context.prompts.front();
  COMOE_RETURN_IF_ERROR(
      stepper.Step({{0, 0, {prompt.begin(), prompt.end() - 1}, api::LogitsMode::kNone, {}}}).status());
  std::vector<std::pair<std::vector<float>, std::vector<std::int64_t>>> classes;
  for (const std::int64_t rows :
       {1, 2, 3, 5, 8, 9, 12, 16, 17, 32, 33, 63, 64, 65, 80, 96, 128, 129, 160, 192}) {
    COMOE_ASSIGN_OR_RETURN(std::vector<float> logits, Among(context, stepper, rows));
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const auto& known) {
      return std::memcmp(known.first.data(), logits.data(), logits.size() * sizeof(float)) == 0;
    });
    if (same != classes.end()) {
      same->second.push_back(rows);
    } else {
      classes.push_back({std::move(logits), {rows}});
    }
  }
  nlohmann::json out = nlohmann::json::array();
  for (const auto& known : classes) {
    out.push_back(known.second);
  }
  return out;
}

absl::StatusOr<nlohmann::json> Measure(const CheckOptions& options, const std::string& activations,
                                       bool any_batch_is_same, bool* passed) {
  Setting setting;
  setting.activations = activations;
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<cli::EngineBundle> bundle, Load(options, setting));
  Context context{bundle->engine(), {}, options.decodes};
  const api::ModelInfo& info = context.engine.model_info();
  COMOE_ASSIGN_OR_RETURN(context.prompts, Prompts(options, info, kSequences, 40));
  nlohmann::json out;

  COMOE_ASSIGN_OR_RETURN(const Drawn alone, Decode(context, 1, nullptr));
  Drawn want = alone;
  for (std::vector<base::TokenId>& tokens : want.tokens) {
    tokens.erase(tokens.begin());  // the prompt's, which was alone either way
  }
  for (std::int64_t batch = 2; batch <= kSequences; ++batch) {
    COMOE_ASSIGN_OR_RETURN(Drawn free, Decode(context, batch, nullptr));
    COMOE_ASSIGN_OR_RETURN(Drawn forced, Decode(context, batch, &alone));
    const auto compare = [&](Drawn& got) {
      for (std::vector<base::TokenId>& tokens : got.tokens) {
        tokens.erase(tokens.begin());
      }
      return Compare(want, got, info.vocab_size);
    };
    const Difference running = compare(free);
    // With the tokens of the run alone: every row has the same history, and each draw is compared.
    for (std::vector<base::TokenId>& tokens : forced.tokens) {
      tokens.erase(tokens.begin());
    }
    Difference difference;
    const auto vocab = static_cast<std::size_t>(info.vocab_size);
    for (std::size_t s = 0; s < want.logits.size(); ++s) {
      for (std::size_t at = 0; at < want.logits[s].size(); at += vocab) {
        difference.AddRow(absl::MakeConstSpan(want.logits[s]).subspan(at, vocab),
                          absl::MakeConstSpan(forced.logits[s]).subspan(at, vocab));
      }
    }
    nlohmann::json point = difference.Json();
    point["batch"] = batch;
    point["other_tokens_running_free"] = running.other_tokens;
    out["batches"].push_back(std::move(point));
    if ((any_batch_is_same || batch <= kernels::kCudaFewRows) && !(difference.none() && running.none())) {
      std::printf("FAILED batch of %lld, %s: %s\n", static_cast<long long>(batch), activations.c_str(),
                  difference.Json().dump().c_str());
      *passed = false;
    }
  }

  COMOE_ASSIGN_OR_RETURN(context.prompts, Prompts(options, info, 1, kPrompt));
  COMOE_ASSIGN_OR_RETURN(const Rows whole, Chunked(context, kPrompt));
  for (const std::int64_t chunk : {1, 2, 5, 8, 9, 16, 32, 64, 65, 75, 100, 128}) {
    COMOE_ASSIGN_OR_RETURN(const Rows rows, Chunked(context, chunk));
    Difference difference;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      difference.AddRow(whole[i], rows[i]);
    }
    nlohmann::json point = difference.Json();
    point["chunk"] = chunk;
    out["chunks"].push_back(std::move(point));
    *passed = *passed && (!any_batch_is_same || difference.none());
  }
  COMOE_ASSIGN_OR_RETURN(out["same_bits_by_rows_of_step"], RowClasses(context));
  return out;
}

// {"2": 0, ...} on one line.
std::string Line(const nlohmann::json& points, const char* size) {
  std::vector<std::string> parts;
  for (const nlohmann::json& point : points) {
    parts.push_back(absl::StrCat(point[size].get<int>(), ":", point["other_rows"].get<int>(), "/",
                                 point["other_tokens"].get<int>()));
  }
  return absl::StrJoin(parts, " ");
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureBatchDependence(const CheckOptions& options, bool* passed) {
  *passed = true;
  const bool gpu = options.device == "cuda";
  const bool there = gpu && CublasIsThere();
  nlohmann::json out = nlohmann::json::array();
  for (const std::string& activations : options.activations) {
    for (const bool cublas : {true, false}) {
      if (cublas && !there) {
        continue;
      }
      std::optional<WithoutCublas> hidden;
      if (!cublas) {
        hidden.emplace();
      }
      COMOE_ASSIGN_OR_RETURN(nlohmann::json found, Measure(options, activations, !gpu, passed));
      std::printf(
          "alone and in batches, %s, %s (rows of other bits / other tokens, of %d)\n  by batch  %s\n  "
          "by chunk, of a prompt of %lld  %s\n  same bits by rows of the step  %s\n",
          activations.c_str(),
          !gpu     ? options.device.c_str()
          : cublas ? "with cuBLAS"
                   : "without cuBLAS",
          found["batches"][0]["rows"].get<int>(), Line(found["batches"], "batch").c_str(),
          static_cast<long long>(kPrompt), Line(found["chunks"], "chunk").c_str(),
          found["same_bits_by_rows_of_step"].dump().c_str());
      found["activations"] = activations;
      found["cublas"] = cublas;
      out.push_back(std::move(found));
    }
  }
  return out;
}

}  // namespace comoe::testing
