// One MoE layer's routed experts: hits are computed at once, misses as they arrive or by the host, all into
// the rows of expert_out that the combine reads in fixed order. So when an expert is computed does not show,
// nor by whom where device and host lane sum alike (not on a GPU).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/kernels/expert_ffn.h"
#include "engine/model/serving_scratch.h"

namespace comoe::model {

struct StepContext;

// The routing of `layer` is in the workspace (experts, weights, dispatch) and known to the director. Usage:
// Begin, ComputeHits, then anything that needs no routed expert, then Finish; after that expert_out is
// complete on the compute stream. What is queued between Begin and ComputeHits runs while the first copies
// are under way. Rows whose expert could not be had are marked in Workspace::row_status.
class ExpertServing {
 public:
  ExpertServing(const StepContext& context, std::int32_t layer) : context_(context), layer_(layer) {}

  // Decides, and starts certain copies and the host lane.
  absl::Status Begin();
  // Orders guesses, and queues the experts that are there.
  absl::Status ComputeHits();
  // Queues the others, each after its own copy, and waits (on the device) for the host lane.
  absl::Status Finish();

 private:
  void TellVacated();
  absl::Status Classify();
  absl::Status Decide();
  absl::Status StartHostLane();
  absl::Status IssueFetches();
  void GiveOrders();
  absl::Status Compute(absl::Span<const kernels::ExpertRows> work, std::int32_t expert);
  absl::Status ComputeArrivals(std::size_t& next);
  absl::Status FetchTheRest(std::size_t& next);
  absl::Status ComputeArrival(ServingScratch::Arrival arrival, bool last);
  void TimeHostLane();
  absl::Status JoinHostLane();
  // The rows of `work` cannot be computed; the step goes on without them.
  absl::Status GiveUp(const kernels::ExpertRows& work, base::ExpertKey key, const absl::Status& why);

  const StepContext& context_;
  const std::int32_t layer_;
  bool ordered_ = false;
  std::size_t next_fetch_ = 0;
  device::Event host_done_;
  bool link_was_busy_ = false;  // when misses were decided
};

}  // namespace comoe::model
