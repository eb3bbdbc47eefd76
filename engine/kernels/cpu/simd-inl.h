// What the per-target kernels share: vectors that run along groups of 16 floats (a panel's outputs, a block's
// positions), whatever the width of a register, and the few functions that they need.
#if defined(COMOE_ENGINE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COMOE_ENGINE_KERNELS_CPU_SIMD_INL_H_
#undef COMOE_ENGINE_KERNELS_CPU_SIMD_INL_H_
#else
#define COMOE_ENGINE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

// Loops over registers must disappear: an array of vectors that is indexed at run time lives in memory.
#ifndef COMOE_UNROLL
#ifdef __clang__
#define COMOE_UNROLL _Pragma("clang loop unroll(full)")
#define COMOE_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define COMOE_UNROLL _Pragma("GCC unroll 16")
#define COMOE_NO_UNROLL _Pragma("GCC unroll 1")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using F32Vec = hn::Vec<F32>;
using One = hn::CappedTag<float, 1>;

inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
inline constexpr int kVecs = 16 / kLanes;  // registers of 16 floats

HWY_INLINE F32Vec LoadF32(const float* from) { return hn::LoadU(F32(), from); }

// Floats, or the floats that binary16 bits stand for.
template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const std::uint16_t* from) {
  const hn::Rebind<hwy::float16_t, D> f16;
  const auto value = hn::PromoteTo(d, hn::LoadU(f16, reinterpret_cast<const hwy::float16_t*>(from)));
#if HWY_TARGET >= HWY_SSE4
  // Without an instruction for it, Highway takes the highest exponent, NaN and Inf, for 2^16 and more.
  const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const hn::RebindToUnsigned<D> bits;
  const auto highest = hn::Ge(hn::Abs(value), hn::Set(d, 65536.0F));
  return hn::IfThenElse(highest,
                        hn::BitCast(d, hn::Or(hn::BitCast(bits, value), hn::BitCast(bits, infinity))), value);
#else
  return value;
#endif
}
HWY_INLINE void StoreF32(F32Vec v, float* to) { hn::StoreU(v, F32(), to); }

// The sum of 16 floats in one fixed order, the same for every target.
HWY_INLINE float Sum16(const float* v) {
  float eight[8];
  for (int i = 0; i < 8; ++i) {
    eight[i] = v[i] + v[i + 8];
  }
  const float a = (eight[0] + eight[4]) + (eight[2] + eight[6]);
  const float b = (eight[1] + eight[5]) + (eight[3] + eight[7]);
  return a + b;
}

// Calls fn(tag, i) for i over [0, n), first in whole registers, then one by one: fn computes lanes i ... of
// tag. The lanes of an elementwise operation come out alike in both.
template <class Fn>
HWY_INLINE void ForLanes(std::int64_t n, const Fn& fn) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    fn(F32(), i);
  }
  for (; i < n; ++i) {
    fn(One(), i);
  }
}

// x / (1 + exp(-x)). Exp is right up to 104 only; it is infinite from 89 on.
template <class D>
HWY_INLINE hn::Vec<D> Silu(D d, hn::Vec<D> x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0F), hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 100.0F)))));
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
