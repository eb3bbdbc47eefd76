// Named ranges for a profiler (NVTX): what the thread that queues a step's work is at, nested as
// step > layer > stage. Between steps there are none.
#pragma once

#include <string>

#include "engine/base/ids.h"
#include "engine/base/stage.h"
#include "engine/device/cuda/plugin_api.h"

namespace comoe::device {

// Used by one thread from BeginStep to EndStep.
class CudaRanges {
 public:
  // `api` outlives it.
  explicit CudaRanges(const CudaDeviceApi& api) : api_(api) {}

  void BeginStep(base::StepId step);
  void SetStage(const base::Stage& stage);
  void EndStep();

 private:
  void Push(const std::string& name);
  void PopTo(int open);

  const CudaDeviceApi& api_;
  int open_ = 0;
  base::Stage stage_;
};

}  // namespace comoe::device
