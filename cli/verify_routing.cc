// The check of routed experts against a recorded trace.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/progress.h"
#include "cli/routing_trace.h"
#include "cli/verify.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/numpy_file.h"

namespace comoe::cli {
namespace {

constexpr double kAgreement = 0.999;
// True if `ours` [k] and the trace's k experts are the same set.
bool SameSet(const std::int32_t* ours, const checkpoint::NumpyArray& experts, std::int64_t first,
             std::int64_t k) {
  for (std::int64_t i = 0; i < k; ++i) {
    const std::int64_t wanted = experts.IntegerAt(first + i);
    if (std::find(ours, ours + k, wanted) == ours + k) {
      return false;
    }
  }
  return true;
}

}  // namespace

void RoutingLog::Observe(const api::RoutingObservation& observation) {
  const auto layer = static_cast<std::size_t>(observation.layer);
  if (layer >= layers_.size()) {
    layers_.resize(layer + 1);
  }
  layers_[layer].insert(layers_[layer].end(), observation.experts.begin(), observation.experts.end());
}

void RoutingLog::Clear() {
  for (std::vector<std::int32_t>& layer : layers_) {
    layer.clear();
  }
}

const std::vector<std::int32_t>& RoutingLog::experts(std::int32_t layer) const {
  static const std::vector<std::int32_t> none;
  return static_cast<std::size_t>(layer) < layers_.size() ? layers_[static_cast<std::size_t>(layer)] : none;
}

absl::StatusOr<std::vector<Check>> VerifyRouting(const VerifyContext& context, RoutingLog& log,
                                                 std::int64_t max_sequences) {
  const api::ModelInfo& info = context.engine.model_info();
  COMOE_ASSIGN_OR_RETURN(const RoutingTrace trace,
                         ReadRoutingTrace(context.directory + "/routing_trace.npz", info));
  const std::int64_t sequences =
      max_sequences > 0 ? std::min(max_sequences, trace.sequences()) : trace.sequences();
  const std::int64_t k = trace.k();
  Progress progress("routing trace", context.quiet);
  std::int64_t agreed = 0;
  std::int64_t total = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    std::vector<base::TokenId> ids;
    for (std::int64_t t = 0; t < trace.tokens(); ++t) {
      ids.push_back(static_cast<base::TokenId>(trace.ids.IntegerAt(s * trace.tokens() + t)));
    }
    log.Clear();
    context.sequence.Reset();
    COMOE_RETURN_IF_ERROR(context.sequence.Append(ids));
    std::int64_t moe_layer = 0;
    for (std::int32_t layer = 0; layer < info.num_layers; ++layer) {
      const std::vector<std::int32_t>& ours = log.experts(layer);
      if (ours.empty()) {
        continue;  // a dense layer
      }
      for (std::int64_t t = 0; t < trace.tokens(); ++t) {
        const std::int64_t first = ((s * trace.tokens() + t) * trace.layers() + moe_layer) * k;
        agreed += SameSet(ours.data() + t * k, trace.experts, first, k) ? 1 : 0;
        ++total;
      }
      ++moe_layer;
    }
    progress.Update(static_cast<std::uint64_t>(s + 1), static_cast<std::uint64_t>(sequences), "sequences");
  }
  const double share = static_cast<double>(agreed) / static_cast<double>(total);
  return std::vector<Check>{
      {"routing_trace.npz", share >= kAgreement,
       absl::StrFormat("routed sets agree in %.4f %% of %d layer-rows (%d sequences), bound %.1f %%",
                       100.0 * share, total, sequences, 100.0 * kAgreement)}};
}

}  // namespace comoe::cli
