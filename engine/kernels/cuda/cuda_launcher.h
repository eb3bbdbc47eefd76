// What the operations on a CUDA device have in common: a stream with the plugin's kernels, memory for their
// arguments, and what stays with the stream from one launch to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda/cuda_stream.h"
#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

inline CudaDType DTypeOf(tensor::DType dtype) { return static_cast<CudaDType>(dtype); }

static_assert(static_cast<int>(tensor::DType::kF32) == static_cast<int>(CudaDType::kF32));
static_assert(static_cast<int>(tensor::DType::kBf16) == static_cast<int>(CudaDType::kBf16));
static_assert(static_cast<int>(tensor::DType::kF16) == static_cast<int>(CudaDType::kF16));

inline float* Data(const tensor::TensorView& view) { return reinterpret_cast<float*>(view.data); }

// Sequences that lie in a table of the stream's.
struct Prepared {
  const CudaSpan* spans = nullptr;
  const std::int32_t* blocks = nullptr;
  std::int64_t num_spans = 0;
  std::int64_t max_context = 0;  // a bound
};

// What kernels keep with a stream.
struct KernelState {
  void* blas = nullptr;  // a cuBLAS handle, or none where the library is missing
  bool blas_asked_for = false;
  void (*destroy_blas)(void* blas) = nullptr;
  std::vector<Prepared> prepared;
};

// A stream that kernels may be launched on, and with what. A view: made for one call, on the thread that owns
// the stream, which outlives it.
class Launcher {
 public:
  // FAILED_PRECONDITION: the stream is none of a CUDA device. UNAVAILABLE: the plugin has no kernels, or
  // other ones.
  static absl::StatusOr<Launcher> Make(device::Stream& stream);

  device::CudaStream& stream() const { return *stream_; }

  template <typename Args>
  absl::Status Launch(int (*CudaLaunchTable::*launch)(const Args&, void*), const Args& args,
                      absl::string_view name) const {
    return stream_->Launched((table_->*launch)(args, stream_->handle()), name);
  }

  // A copy of `values` for one launch, and where kernels find it.
  template <typename T>
  absl::StatusOr<const T*> Stage(absl::Span<const T> values) const {
    COMOE_ASSIGN_OR_RETURN(const std::byte* const staged,
                           stream_->StageCopy(values.data(), values.size() * sizeof(T)));
    return reinterpret_cast<const T*>(staged);
  }
  // Two arrays for one launch, written by `fill(first, second)`, and where kernels find them.
  template <typename A, typename B, typename Fill>
  absl::StatusOr<std::pair<const A*, const B*>> Stage(std::size_t num_a, std::size_t num_b, Fill fill) const {
    constexpr std::size_t kAlignment = 16;
    const std::size_t second = base::AlignUp(num_a * sizeof(A), kAlignment);
    const std::size_t bytes = second + num_b * sizeof(B);
    COMOE_ASSIGN_OR_RETURN(std::byte* const staged, stream_->Stage(bytes));
    fill(absl::Span<A>(reinterpret_cast<A*>(staged), num_a),
         absl::Span<B>(reinterpret_cast<B*>(staged + second), num_b));
    COMOE_ASSIGN_OR_RETURN(const std::byte* const sent, stream_->Send(staged, bytes));
    return std::pair<const A*, const B*>(reinterpret_cast<const A*>(sent),
                                         reinterpret_cast<const B*>(sent + second));
  }
  KernelState& state() const;
  // The stream's cuBLAS handle, made when it is first asked for; nullptr where the library is missing.
  void* Blas() const;

 private:
  Launcher(device::CudaStream& stream, const CudaLaunchTable& table) : stream_(&stream), table_(&table) {}

  device::CudaStream* stream_;
  const CudaLaunchTable* table_;
};

}  // namespace comoe::kernels
