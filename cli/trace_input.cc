// Traces from files, ours or numpy's.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/trace.h"
#include "cli/trace_model.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/numpy_file.h"

namespace comoe::cli {
namespace {

using checkpoint::NumpyArray;

constexpr std::uint64_t kNpzLimitBytes = std::uint64_t{4} << 30;
constexpr std::int64_t kNumpyNoExpert = 255;  // in arrays of bytes

// What the arrays themselves say of the model.
absl::Status GuessHeader(const NumpyArray& ids, const NumpyArray& experts, routing::TraceHeader* header) {
  header->num_layers = static_cast<std::int32_t>(std::min<std::int64_t>(experts.shape[2], 1 << 20));
  for (std::int32_t layer = 0; layer < header->num_layers; ++layer) {
    header->moe_layers.push_back(layer);
  }
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < experts.num_elements(); ++i) {
    most = std::max(most, experts.IntegerAt(i));
  }
  header->num_experts = static_cast<std::int32_t>(std::clamp<std::int64_t>(most + 1, 1, 1 << 20));
  header->experts_per_token = static_cast<std::int32_t>(std::min<std::int64_t>(experts.shape[3], 1 << 20));
  most = 0;
  for (std::int64_t i = 0; i < ids.num_elements(); ++i) {
    most = std::max(most, ids.IntegerAt(i));
  }
  header->vocab_size = static_cast<std::int32_t>(std::clamp<std::int64_t>(most + 1, 1, 1 << 30));
  return absl::OkStatus();
}

bool IsIntegers(const NumpyArray& array, std::size_t dimensions) {
  return array.dtype != checkpoint::NumpyDType::kF32 && array.shape.size() == dimensions &&
         array.num_elements() > 0;
}

// [S, T, n...] -> the n values of each token of sequence s.
template <typename T>
absl::Status Take(const NumpyArray& array, std::int64_t sequence, std::int64_t each, std::int64_t below,
                  bool may_lack, absl::string_view what, std::vector<T>* values) {
  values->reserve(static_cast<std::size_t>(each));
  for (std::int64_t i = sequence * each; i < (sequence + 1) * each; ++i) {
    const std::int64_t value = array.IntegerAt(i);
    if (may_lack && value == kNumpyNoExpert && value >= below) {
      values->push_back(static_cast<T>(routing::kNoExpert));
    } else if (value < 0 || value >= below) {
      return absl::InvalidArgumentError(absl::StrCat(what, " has ", value, ", not in [0, ", below, ")"));
    } else {
      values->push_back(static_cast<T>(value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<routing::Trace> ImportNumpy(const std::string& path, const std::string& model) {
  COMOE_ASSIGN_OR_RETURN(auto arrays, checkpoint::ReadNpz(path, kNpzLimitBytes));
  if (!arrays.contains("ids") || !arrays.contains("experts")) {
    return absl::InvalidArgumentError(absl::StrCat(path, " lacks the array ids or experts"));
  }
  const NumpyArray& ids = arrays["ids"];
  const NumpyArray& experts = arrays["experts"];
  if (!IsIntegers(ids, 2) || !IsIntegers(experts, 4) || experts.shape[0] != ids.shape[0] ||
      experts.shape[1] != ids.shape[1]) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ids is [S, T] and experts [S, T, layers, k], both of integers"));
  }
  routing::Trace trace;
  std::string folder = model;
  if (folder.empty()) {
    const std::string beside = std::filesystem::path(path).parent_path().string();
    folder = IsThere(absl::StrCat(beside.empty() ? "." : beside, "/config.json"))
                 ? (beside.empty() ? "." : beside)
                 : "";
  }
  if (folder.empty()) {
    COMOE_RETURN_IF_ERROR(GuessHeader(ids, experts, &trace.header));
  } else {
    COMOE_ASSIGN_OR_RETURN(trace.header, DescribeForTrace(folder, ""));
    if (trace.header.num_moe_layers() != experts.shape[2] ||
        trace.header.experts_per_token != experts.shape[3]) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is of ", experts.shape[2], " MoE layers and top-", experts.shape[3], ", the model in ",
          folder, " has ", trace.header.num_moe_layers(), " and top-", trace.header.experts_per_token));
    }
  }
  std::vector<const NumpyArray*> ahead;
  for (std::int32_t d = 1; d <= routing::kMaxTraceLookahead; ++d) {
    const auto found = arrays.find(absl::StrCat("lookahead", d));
    if (found == arrays.end()) {
      break;
    }
    const NumpyArray& array = found->second;
    if (!IsIntegers(array, 4) || array.shape[0] != ids.shape[0] || array.shape[1] != ids.shape[1] ||
        array.shape[2] != experts.shape[2] || (!ahead.empty() && array.shape[3] != ahead[0]->shape[3])) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", found->first, " is not [S, T, layers, n] of integers"));
    }
    ahead.push_back(&array);
  }
  trace.header.lookahead = static_cast<std::int32_t>(ahead.size());
  trace.header.lookahead_width =
      ahead.empty() ? 0 : static_cast<std::int32_t>(std::min<std::int64_t>(ahead[0]->shape[3], 1 << 20));
  const auto domain = arrays.find("domain");
  trace.header.has_domains =
      domain != arrays.end() && IsIntegers(domain->second, 2) && domain->second.shape == ids.shape;
  COMOE_RETURN_IF_ERROR(base::Annotate(routing::CheckTraceHeader(trace.header), path));
  const std::int64_t num_tokens = ids.shape[1];
  const std::int64_t routed = num_tokens * experts.shape[2] * experts.shape[3];
  for (std::int64_t s = 0; s < ids.shape[0]; ++s) {
    routing::TraceSequence& sequence = trace.sequences.emplace_back();
    sequence.id = static_cast<std::uint64_t>(s);
    COMOE_RETURN_IF_ERROR(base::Annotate(
        Take(ids, s, num_tokens, trace.header.vocab_size, false, "ids", &sequence.tokens), path));
    COMOE_RETURN_IF_ERROR(base::Annotate(
        Take(experts, s, routed, trace.header.num_experts, false, "experts", &sequence.experts), path));
    for (const NumpyArray* array : ahead) {
      COMOE_RETURN_IF_ERROR(
          base::Annotate(Take(*array, s, num_tokens * experts.shape[2] * trace.header.lookahead_width,
                              trace.header.num_experts, true, "lookahead", &sequence.ahead.emplace_back()),
                         path));
    }
    if (trace.header.has_domains) {
      COMOE_RETURN_IF_ERROR(
          base::Annotate(Take(domain->second, s, num_tokens, 256, false, "domain", &sequence.domains), path));
    }
  }
  return trace;
}

struct ImportOptions {
  std::string from;
  std::string trace;
  std::string model;
};

absl::Status Import(const ImportOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const routing::Trace trace, LoadTrace(options.from, options.model));
  COMOE_RETURN_IF_ERROR(routing::WriteTrace(options.trace, trace));
  std::printf("%s: %zu sequences, %lld rows, %d MoE layers of %d experts, top-%d, look-ahead %d\n",
              options.trace.c_str(), trace.sequences.size(), static_cast<long long>(trace.num_rows()),
              trace.header.num_moe_layers(), trace.header.num_experts, trace.header.experts_per_token,
              trace.header.lookahead);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<routing::Trace> LoadTrace(const std::string& path, const std::string& model) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "which trace? Give --trace FILE, of `comoe trace record` or a routing_trace.npz");
  }
  return absl::EndsWith(path, ".npz") ? ImportNumpy(path, model) : routing::ReadTrace(path);
}

void AddTraceImportCommand(CLI::App& trace, absl::Status& result) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = trace.add_subcommand("import", "a routing_trace.npz as a trace file");
  command->add_option("--from", options->from, "routing_trace.npz: ids, experts, lookahead1.., domain")
      ->required();
  command->add_option("--trace", options->trace, "the file to write")->required();
  command->add_option("--model", options->model,
                      "the model's folder (default: the one that the file lies in, if it is one)");
  command->callback([options, &result] { result = Import(*options); });
}

}  // namespace comoe::cli
