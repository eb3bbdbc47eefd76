// A counter-based generator: the n-th draw of a seed is a pure function of (seed, n), so a sequence's samples
// do not depend on what else runs, on batching or on preemption.
#pragma once

#include <cstdint>

namespace comoe::base {

// SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
constexpr std::uint64_t MixBits(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}

// 64 random bits for draw `counter` of `seed`.
constexpr std::uint64_t RandomBits(std::uint64_t seed, std::uint64_t counter) {
  return MixBits(MixBits(seed + 0x9e3779b97f4a7c15ULL) + (counter + 1) * 0x9e3779b97f4a7c15ULL);
}

// In [0, 1), 53 bits.
constexpr double RandomUnit(std::uint64_t seed, std::uint64_t counter) {
  return static_cast<double>(RandomBits(seed, counter) >> 11) * 0x1.0p-53;
}

// A fresh seed from the operating system, for requests that name none. It is always reported back.
std::uint64_t DrawSeed();

}  // namespace comoe::base
