// What the kernels share: conversions, warp-wide sums, asynchronous copies to shared memory and tensor-core
// instructions of sm_80 and later. Device code only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "engine/kernels/cuda/cuda_launch.h"

namespace comoe::kernels {

inline constexpr unsigned kFullWarp = 0xffffffffU;
inline constexpr int kWarpSize = 32;

__host__ __device__ constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// ---- launching
// ---------------------------------------------------------------------------------------------

inline cudaStream_t AsStream(void* stream) { return static_cast<cudaStream_t>(stream); }
inline constexpr int kBadSizes = cudaErrorInvalidValue;

// Whether every pointer is a multiple of 16 bytes and every stride of 4 elements: rows can be read as float4.
inline bool Aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }
inline bool VectorRows(const float* p, std::int64_t stride) { return Aligned16(p) && stride % 4 == 0; }

// More than 48 KB of shared memory, static one included, has to be asked for, on every device anew.
template <class Kernel>
int AllowShared(Kernel* kernel, std::size_t bytes) {
  if (bytes <= 40 * 1024) {
    return 0;
  }
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// ---- numbers
// -----------------------------------------------------------------------------------------------

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

inline constexpr float kLog2E = 1.4426950408889634F;

__device__ __forceinline__ float Silu(float x) { return x / (1.0F + expf(-x)); }

// Sum over the lanes whose index differs in the bits below `Width`; every lane gets it.
template <int Width = kWarpSize>
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int step = Width / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(kFullWarp, x, step);
  }
  return x;
}

// A float's rank as an unsigned number: the order of the floats, -0 equal to +0, NaN lowest. Never 0.
__device__ __forceinline__ std::uint32_t RankKey(float x) {
  if (isnan(x)) {
    return 1;
  }
  const std::uint32_t bits = __float_as_uint(x + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
// The float of a key; NaN for 1.
__device__ __forceinline__ float RankValue(std::uint32_t key) {
  if (key == 1) {
    return __uint_as_float(0x7fffffffU);
  }
  return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

// Two floats as a word of two 16-bit ones, the first in the low half.
struct Bf16Pair {
  static __device__ __forceinline__ std::uint32_t Pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  static __device__ __forceinline__ float Low(std::uint32_t word) { return __uint_as_float(word << 16); }
  static __device__ __forceinline__ float High(std::uint32_t word) {
    return __uint_as_float(word & 0xffff0000U);
  }
};
struct HalfPair {
  static __device__ __forceinline__ std::uint32_t Pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  static __device__ __forceinline__ float Low(std::uint32_t word) {
    return __low2float(*reinterpret_cast<const __half2*>(&word));
  }
  static __device__ __forceinline__ float High(std::uint32_t word) {
    return __high2float(*reinterpret_cast<const __half2*>(&word));
  }
};

// The pair as a sum of `Terms` pairs of 16 bits, largest first: what rounding left goes into the next.
template <class Pair, int Terms>
__device__ __forceinline__ void SplitPair(float low, float high, std::uint32_t (&terms)[Terms]) {
#pragma unroll
  for (int i = 0; i < Terms; ++i) {
    terms[i] = Pair::Pack(low, high);
    low -= Pair::Low(terms[i]);
    high -= Pair::High(terms[i]);
  }
}

// ---- memory
// ------------------------------------------------------------------------------------------------

// 16 bytes of weights that are read once: past the first-level cache.
__device__ __forceinline__ uint4 LoadOnce(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ std::uint32_t SharedAddress(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes to shared memory; fills with zeros where `valid` is false (p is not read then).
__device__ __forceinline__ void CopyAsync16(std::uint32_t shared, const void* p, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(p), "r"(bytes)
               : "memory");
}
// Copies 16 bytes where `copies`, `bytes` of them from memory, 16 or 0, and zeros for the rest.
__device__ __forceinline__ void CopyAsync16If(bool copies, std::uint32_t shared, const void* p, int bytes) {
  if (copies) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(p), "r"(bytes)
                 : "memory");
  }
}
// For data that nobody reads again soon: it leaves the second-level cache before other data does.
__device__ __forceinline__ std::uint64_t ReadOncePolicy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void CopyAsync16(std::uint32_t shared, const void* p, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(p),
               "l"(policy)
               : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Pending` of this thread's groups are on their way.
template <int Pending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

__device__ __forceinline__ uint4 LoadShared16(std::uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

// ---- tensor cores
// ------------------------------------------------------------------------------------------ Fragments of
// m16n8k16, with group = lane / 4 and t = lane % 4, words of two 16-bit elements:
//   A [16, 16]: a0 (row group, k 2t), a1 (group + 8, 2t), a2 (group, 2t + 8), a3 (group + 8, 2t + 8)
//   B [16, 8]:  b0 (k 2t, column group), b1 (2t + 8, group)
//   C [16, 8]:  c0, c1 (row group, columns 2t, 2t + 1), c2, c3 (group + 8, the same)

struct LdMatrix {
  // Four 8x8 matrices; lane i gives the address of row i % 8 of matrix i / 8. Lane l gets elements 2 (l % 4),
  // + 1 of row l / 4 of each.
  static __device__ __forceinline__ void Load(std::uint32_t shared, std::uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  }
  // The same of the transposed matrices: elements of rows 2 (l % 4), + 1 in column l / 4.
  static __device__ __forceinline__ void LoadTransposed(std::uint32_t shared, std::uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  }
};

// c += a b.
template <class Pair>
__device__ __forceinline__ void Mma(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void Mma<Bf16Pair>(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                              std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                              std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void Mma<HalfPair>(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                              std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                              std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace comoe::kernels
