#include "cli/cuda_options.h"

#include <algorithm>
#include <string>

#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/device/cuda/cuda_loader.h"
#include "engine/kernels/cuda/cuda_kernels.h"

namespace comoe::cli {
namespace {

// One thread queues the GPU's work; the others compute experts on the host.
int HostThreads(const EngineOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1, base::UsableCores() - 1);
}

}  // namespace

void ChooseDevice(EngineOptions& options) {
  if (options.device != "auto") {
    return;
  }
  const absl::Status found = device::FindCudaDevice(options.cuda_plugin, options.cuda_device);
  options.device = found.ok() ? "cuda" : "cpu";
  options.device_reason = std::string(found.message());
}

device::CudaOptions CudaOptionsOf(const EngineOptions& options) {
  device::CudaOptions cuda;
  cuda.ordinal = options.cuda_device;
  cuda.host_threads = HostThreads(options);
  cuda.ranges = options.nvtx;
  cuda.one_stream = options.serial == device::EmulatedSerial::kOneStream;
  return cuda;
}

absl::StatusOr<std::unique_ptr<device::Device>> MakeCudaDevice(const EngineOptions& options) {
  return options.make_device ? options.make_device()
                             : device::OpenCudaDevice(options.cuda_plugin, CudaOptionsOf(options));
}

const kernels::KernelTable& CudaKernelsFor(const EngineOptions& options) {
  if (options.device_kernels != nullptr) {
    return *options.device_kernels;
  }
  return kernels::CudaKernels(options.activations == "bf16" ? kernels::CudaPrecision::kBf16
                                                            : kernels::CudaPrecision::kExact);
}

}  // namespace comoe::cli
