#include <dlfcn.h>

#include <cstdlib>
#include <memory>

#include "engine/kernels/cuda/blas.h"
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

// What is used of cublas_api.h, whose ABI has been the same since CUDA 11.
using Handle = void*;
constexpr int kOpTranspose = 1;
constexpr int kOpNone = 0;
constexpr int kRealF32 = 0;
constexpr int kRealBf16 = 14;
constexpr int kComputeF32 = 68;
constexpr int kDefaultAlgorithm = -1;

struct Blas {
  void* library = nullptr;
  Handle handle = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
              const void*, void*, int, int, int, int) = nullptr;
};

void* OpenLibrary() {
  // COMOE_CUBLAS names a file where it lies elsewhere.
  if (const char* path = std::getenv("COMOE_CUBLAS"); path != nullptr) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  for (const char* name : {"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13", "libcublas.so.12"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
  }
  return nullptr;
}

template <class Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

__global__ void BiasKernel(float* y, std::int64_t stride, std::int64_t rows, std::int64_t n,
                           const float* bias) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) {
    for (std::int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
      y[t * stride + i] += bias[i];
    }
  }
}

}  // namespace

int CreateBlas(void** out) {
  *out = nullptr;
  auto blas = std::make_unique<Blas>();
  blas->library = OpenLibrary();
  if (blas->library == nullptr) {
    return cudaErrorSharedObjectInitFailed;
  }
  if (!Find(blas->library, "cublasCreate_v2", blas->create) ||
      !Find(blas->library, "cublasDestroy_v2", blas->destroy) ||
      !Find(blas->library, "cublasSetStream_v2", blas->set_stream) ||
      !Find(blas->library, "cublasGemmEx", blas->gemm)) {
    return cudaErrorSharedObjectSymbolNotFound;
  }
  if (blas->create(&blas->handle) != 0) {
    return cudaErrorInitializationError;
  }
  *out = blas.release();
  return 0;
}

// The library stays loaded: it does not take unloading well.
void DestroyBlas(void* blas) {
  std::unique_ptr<Blas> owner(static_cast<Blas*>(blas));
  if (owner != nullptr) {
    owner->destroy(owner->handle);
  }
}

int BlasMatMul(const CudaMatMulArgs& args, const RowTerms& x, void* stream) {
  const Blas& blas = *static_cast<const Blas*>(args.blas);
  if (blas.set_stream(blas.handle, AsStream(stream)) != 0) {
    return cudaErrorUnknown;
  }
  const float one = 1;
  const auto n = static_cast<int>(args.n);
  const auto rows = static_cast<int>(args.rows);
  const auto k = static_cast<int>(args.k);
  for (std::int64_t term = x.terms - 1; term >= 0; --term) {
    const float beta = term == x.terms - 1 ? 0.0F : 1.0F;
    // In cuBLAS's columns: y^T [N, T] = w [N, K] x^T [K, T].
    const int status = blas.gemm(blas.handle, kOpTranspose, kOpNone, n, rows, k, &one, args.w, kRealBf16, k,
                                 static_cast<const __nv_bfloat16*>(x.data) + term * x.padded, kRealBf16,
                                 static_cast<int>(x.terms * x.padded), &beta, args.y, kRealF32,
                                 static_cast<int>(args.y_stride), kComputeF32, kDefaultAlgorithm);
    if (status != 0) {
      return cudaErrorUnknown;
    }
  }
  if (args.bias != nullptr) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(args.n, 256)),
                    static_cast<unsigned>(args.rows < 65535 ? args.rows : 65535));
    BiasKernel<<<grid, 256, 0, AsStream(stream)>>>(args.y, args.y_stride, args.rows, args.n, args.bias);
  }
  return cudaGetLastError();
}

}  // namespace comoe::kernels
