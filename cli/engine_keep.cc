#include "cli/engine_keep.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/cuda_options.h"
#include "cli/offload_options.h"

namespace comoe::cli {
namespace {

// All that the device is made from, and what says which bytes an expert has.
std::string IdentityOf(const EngineOptions& options) {
  const device::CudaOptions cuda = CudaOptionsOf(options);
  return absl::StrJoin(
      {options.model, options.widen, options.device, options.cuda_plugin, absl::StrCat(cuda.ordinal),
       absl::StrCat(cuda.host_threads), absl::StrCat(cuda.ranges), absl::StrCat(cuda.one_stream)},
      "\n");
}

}  // namespace

absl::StatusOr<std::shared_ptr<device::Device>> EngineKeep::DeviceFor(const EngineOptions& options,
                                                                      std::uint64_t blob_bytes) {
  std::string identity = IdentityOf(options);
  if (device_ != nullptr && identity_ == identity && device_->health().ok()) {
    return device_;
  }
  Clear();
  identity_ = std::move(identity);
  return MakeOffloadDevice(options, blob_bytes);
}

void EngineKeep::Keep(std::shared_ptr<device::Device> device) {
  device_ = experts_.empty() ? nullptr : std::move(device);
}

void EngineKeep::Clear() {
  experts_.Clear();
  device_ = nullptr;
}

}  // namespace comoe::cli
