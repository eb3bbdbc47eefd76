#include "cli/routing_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

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

}  // namespace comoe::cli
