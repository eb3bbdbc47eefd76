// What the layers of one forward pass share: references to the model's parts and the rows of the step at
// hand.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "engine/api/expert_director.h"
#include "engine/api/step_plan.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"
#include "engine/kernels/ops.h"
#include "engine/model/captured_steps.h"
#include "engine/model/full_layers.h"
#include "engine/model/host_lane.h"
#include "engine/model/kv_pool.h"
#include "engine/model/weights.h"
#include "engine/model/workspace.h"

namespace comoe::model {

// Built once by ForwardPass, which refills the rows for every step. Owned by the engine thread.
struct StepContext {
  const checkpoint::ModelConfig& config;
  const ModelWeights& weights;
  const kernels::KernelTable& kernels;
  const CacheGroups& groups;
  const KvPool& kv;
  experts::ExpertCache& experts;
  api::ExpertDirector& director;
  device::Stream& stream;
  Workspace& work;
  HostLane* host_lane = nullptr;      // nullptr: the host computes no experts
  FullLayers* full_layers = nullptr;  // nullptr: the host says what each expert computes, in every layer
  CapturedSteps* captured = nullptr;  // nullptr: nothing is
  // Computing an expert, as measured at start; the rest of it is asked for when a decision is due.
  api::LaneState lanes{};
  // A copy that takes longer counts as one that never ends.
  absl::Duration copy_limit = absl::InfiniteDuration();

  base::StepId step{};
  std::int64_t rows = 0;  // T
  // Per cache group, the spans of the step: they differ in their block tables only.
  std::vector<std::vector<kernels::SequenceRows>> sequences{};
  // Whether they lie in tables of the device, each group's in that of its number.
  bool prepared = false;

  // What is known of the lanes now.
  api::LaneState Lanes() const {
    api::LaneState now = lanes;
    experts.Describe(now);
    if (host_lane != nullptr) {
      host_lane->Describe(now);
    }
    return now;
  }
  // The first T rows of a workspace matrix.
  tensor::TensorView Use(const tensor::TensorView& matrix) const { return matrix.Rows(0, rows); }
};

}  // namespace comoe::model
