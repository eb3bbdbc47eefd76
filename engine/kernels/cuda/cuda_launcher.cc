#include "engine/kernels/cuda/cuda_launcher.h"

#include <utility>

namespace comoe::kernels {
namespace {

void DestroyState(void* data) {
  auto* const state = static_cast<KernelState*>(data);
  if (state->blas != nullptr) {
    state->destroy_blas(state->blas);
  }
  delete state;
}

}  // namespace

absl::StatusOr<Launcher> Launcher::Make(device::Stream& stream) {
  auto* const cuda = dynamic_cast<device::CudaStream*>(&stream);
  if (cuda == nullptr) {
    return absl::FailedPreconditionError("a CUDA kernel was given a stream that is none of a CUDA device");
  }
  const auto* const table = static_cast<const CudaLaunchTable*>(cuda->kernels());
  if (table == nullptr) {
    return absl::UnavailableError("cuda: the plugin was built without kernels");
  }
  if (table->abi != kCudaLaunchAbi || table->bytes != sizeof(CudaLaunchTable)) {
    return absl::UnavailableError("cuda: the plugin's kernels belong to another version of this program");
  }
  return Launcher(*cuda, *table);
}

KernelState& Launcher::state() const {
  device::CudaKernelState& state = stream_->kernel_state();
  if (state.data == nullptr) {
    auto* const made = new KernelState();
    made->destroy_blas = table_->blas_destroy;
    state = {made, DestroyState};
  }
  return *static_cast<KernelState*>(state.data);
}

void* Launcher::Blas() const {
  KernelState& kept = state();
  if (!std::exchange(kept.blas_asked_for, true) && table_->blas_create(&kept.blas) != 0) {
    kept.blas = nullptr;
  }
  return kept.blas;
}

}  // namespace comoe::kernels
