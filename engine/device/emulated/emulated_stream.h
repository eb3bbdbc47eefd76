// What kernels say to the streams of an emulated accelerator: how much work they were.
#pragma once

#include <cstdint>

#include "engine/device/device.h"

namespace comoe::device {

// Of one kernel.
struct KernelWork {
  double bytes = 0.0;  // read and written
  double flops = 0.0;
  std::int64_t experts = 0;  // of an expert FFN; 0: another kernel
};

// Kernels call both, around what they do. As thread-safe as its device says.
class EmulatedStream : public Stream {
 public:
  virtual void BeginKernel() = 0;
  virtual void EndKernel(const KernelWork& work) = 0;
};

}  // namespace comoe::device
