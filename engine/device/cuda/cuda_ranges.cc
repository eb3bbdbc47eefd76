#include "engine/device/cuda/cuda_ranges.h"

#include "absl/strings/str_cat.h"

namespace comoe::device {
namespace {

constexpr int kStep = 1;  // ranges that are open within a step, and within a layer of it
constexpr int kLayer = 2;

}  // namespace

void CudaRanges::BeginStep(base::StepId step) {
  PopTo(0);
  Push(absl::StrCat("step ", step.value));
  stage_ = {};
}

void CudaRanges::SetStage(const base::Stage& stage) {
  if (open_ == 0 || (open_ > kStep && stage.kind == stage_.kind && stage.layer == stage_.layer &&
                     stage.expert == stage_.expert)) {
    return;
  }
  const bool same_layer = stage.layer == stage_.layer && stage.layer >= 0;
  PopTo(same_layer ? kLayer : kStep);
  stage_ = stage;
  if (stage.layer >= 0 && open_ < kLayer) {
    Push(absl::StrCat("layer ", stage.layer));
  }
  const absl::string_view name = base::StageKindName(stage.kind);
  Push(stage.expert >= 0 ? absl::StrCat(name, " ", stage.expert) : std::string(name));
}

void CudaRanges::EndStep() { PopTo(0); }

void CudaRanges::Push(const std::string& name) {
  api_.push_range(name.c_str());
  ++open_;
}

void CudaRanges::PopTo(int open) {
  for (; open_ > open; --open_) {
    api_.pop_range();
  }
}

}  // namespace comoe::device
