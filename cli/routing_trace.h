// Recorded routing as numpy files hold it: token ids, and what each MoE layer's router chose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/model_info.h"
#include "engine/checkpoint/numpy_file.h"

namespace comoe::cli {

// ids [S, T] and experts [S, T, L, k] of a routing_trace.npz; L counts MoE layers.
struct RoutingTrace {
  checkpoint::NumpyArray ids;
  checkpoint::NumpyArray experts;

  std::int64_t sequences() const { return ids.shape[0]; }
  std::int64_t tokens() const { return ids.shape[1]; }
  std::int64_t layers() const { return experts.shape[2]; }
  std::int64_t k() const { return experts.shape[3]; }
};

// INVALID_ARGUMENT when it is not a trace of such a model.
absl::StatusOr<RoutingTrace> ReadRoutingTrace(const std::string& path, const api::ModelInfo& info);

// How often each expert was chosen: [L][num_experts].
std::vector<std::vector<double>> CountExperts(const RoutingTrace& trace, std::int32_t num_experts);

}  // namespace comoe::cli
