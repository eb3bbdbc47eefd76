#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/machine_peaks.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "engine/kernels/cpu/machine_peaks.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

// Two units with a latency of 4 need 8; two more hide what else there is.
constexpr int kChains = 10;

}  // namespace

std::uint64_t ReadAllOnTarget(const std::byte* data, std::size_t bytes) {
  const hn::CappedTag<std::uint64_t, 8> d;
  constexpr std::size_t kVec = hn::MaxLanes(hn::CappedTag<std::uint64_t, 8>());
  const auto* from = reinterpret_cast<const std::uint64_t*>(data);
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  for (std::size_t i = 0; i + 32 <= bytes / 8; i += 32) {
    COMOE_UNROLL
    for (std::size_t j = 0; j < 32; j += 2 * kVec) {
      a = hn::Xor(a, hn::LoadU(d, from + i + j));
      b = hn::Xor(b, hn::LoadU(d, from + i + j + kVec));
    }
  }
  std::uint64_t lanes[8];
  hn::StoreU(hn::Xor(a, b), d, lanes);
  return lanes[0];
}

float MultiplyAddsOnTarget(std::int64_t rounds) {
  const F32 d;
  F32Vec sums[kChains];
  COMOE_UNROLL
  for (int c = 0; c < kChains; ++c) {
    sums[c] = hn::Set(d, static_cast<float>(c));
  }
  const F32Vec factor = hn::Set(d, 0.5F);
  for (std::int64_t r = 0; r < rounds; ++r) {
    COMOE_UNROLL
    for (int c = 0; c < kChains; ++c) {
      sums[c] = hn::MulAdd(sums[c], factor, factor);
    }
  }
  F32Vec total = hn::Zero(d);
  COMOE_UNROLL
  for (int c = 0; c < kChains; ++c) {
    total = hn::Add(total, sums[c]);
  }
  return hn::GetLane(total);
}

double FlopsOnTarget(std::int64_t rounds) { return 2.0 * kChains * kLanes * static_cast<double>(rounds); }

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(ReadAllOnTarget);
HWY_EXPORT(MultiplyAddsOnTarget);
HWY_EXPORT(FlopsOnTarget);

std::uint64_t ReadAll(const std::byte* data, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(ReadAllOnTarget)(data, bytes);
}
float MultiplyAdds(std::int64_t rounds) { return HWY_DYNAMIC_DISPATCH(MultiplyAddsOnTarget)(rounds); }
double MultiplyAddFlops(std::int64_t rounds) { return HWY_DYNAMIC_DISPATCH(FlopsOnTarget)(rounds); }

}  // namespace comoe::kernels
#endif
