#include "cli/routing_trace.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/json_file.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::cli {
namespace {

constexpr std::uint64_t kTraceLimitBytes = std::uint64_t{4} << 30;

}  // namespace

absl::StatusOr<RoutingTrace> ReadRoutingTrace(const std::string& path, const api::ModelInfo& info) {
  COMOE_ASSIGN_OR_RETURN(auto arrays, checkpoint::ReadNpz(path, kTraceLimitBytes));
  const auto ids = arrays.find("ids");
  const auto experts = arrays.find("experts");
  if (ids == arrays.end() || experts == arrays.end()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " lacks the array ids or experts"));
  }
  RoutingTrace trace{std::move(ids->second), std::move(experts->second)};
  if (trace.ids.dtype == checkpoint::NumpyDType::kF32 ||
      trace.experts.dtype == checkpoint::NumpyDType::kF32 || trace.ids.shape.size() != 2 ||
      trace.experts.shape.size() != 4 || trace.experts.shape[0] != trace.ids.shape[0] ||
      trace.experts.shape[1] != trace.ids.shape[1] || trace.layers() != info.num_moe_layers ||
      trace.k() != info.num_experts_per_token || trace.ids.num_elements() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ids is [S, T] and experts [S, T, ",
                                                   info.num_moe_layers, ", ", info.num_experts_per_token,
                                                   "] for this model"));
  }
  return trace;
}

std::vector<std::vector<double>> CountExperts(const RoutingTrace& trace, std::int32_t num_experts) {
  std::vector<std::vector<double>> counts(static_cast<std::size_t>(trace.layers()),
                                          std::vector<double>(static_cast<std::size_t>(num_experts)));
  const std::int64_t total = trace.experts.num_elements();
  for (std::int64_t i = 0; i < total; ++i) {
    const std::int64_t expert = trace.experts.IntegerAt(i);
    if (expert >= 0 && expert < num_experts) {
      counts[static_cast<std::size_t>(i / trace.k() % trace.layers())][static_cast<std::size_t>(expert)] +=
          1.0;
    }
  }
  return counts;
}

absl::StatusOr<std::vector<std::vector<base::TokenId>>> ReadForcedIds(const std::string& path,
                                                                      std::int32_t vocab_size) {
  std::vector<std::vector<base::TokenId>> texts;
  if (routing::LooksLikeTrace(path)) {
    COMOE_ASSIGN_OR_RETURN(routing::Trace trace, routing::ReadTrace(path));
    for (routing::TraceSequence& sequence : trace.sequences) {
      for (const base::TokenId id : sequence.tokens) {
        if (id >= vocab_size) {
          return absl::InvalidArgumentError(absl::StrCat(path, ": token ", id, " of sequence ", sequence.id,
                                                         ", of a vocabulary of ", vocab_size));
        }
      }
      texts.push_back(std::move(sequence.tokens));
    }
    return texts;
  }
  if (!absl::EndsWith(path, ".npz")) {
    COMOE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
    if (!document.is_object() || !document.contains("ids") || !document["ids"].is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has no array \"ids\""));
    }
    for (const nlohmann::json& text : document["ids"]) {
      COMOE_ASSIGN_OR_RETURN(std::vector<base::TokenId> ids,
                             TokenIds(text, vocab_size, absl::StrCat(path, ": ids")));
      texts.push_back(std::move(ids));
    }
    return texts;
  }
  COMOE_ASSIGN_OR_RETURN(const auto arrays, checkpoint::ReadNpz(path, kTraceLimitBytes));
  const auto found = arrays.find("ids");
  if (found == arrays.end() || found->second.shape.size() != 2 ||
      found->second.dtype == checkpoint::NumpyDType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no integer array ids [S, T]"));
  }
  const checkpoint::NumpyArray& ids = found->second;
  for (std::int64_t s = 0; s < ids.shape[0]; ++s) {
    std::vector<base::TokenId>& text = texts.emplace_back();
    for (std::int64_t t = 0; t < ids.shape[1]; ++t) {
      const std::int64_t id = ids.IntegerAt(s * ids.shape[1] + t);
      if (id < 0 || id >= vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ids[", s, ", ", t, "] is ", id, ", of a vocabulary of ", vocab_size));
      }
      text.push_back(static_cast<base::TokenId>(id));
    }
  }
  return texts;
}

}  // namespace comoe::cli
