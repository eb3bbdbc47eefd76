// What this machine can do at best, for benchmarks and for the hub's first guess of the host's rate.
#pragma once

#include <cstddef>
#include <cstdint>

namespace comoe::kernels {

inline constexpr std::int64_t kPeakRounds = 2'000'000;

// Reads every byte of [data, data + bytes), bytes a multiple of 256, on the calling thread; the result
// depends on all of them, so that nothing is skipped.
std::uint64_t ReadAll(const std::byte* data, std::size_t bytes);

// Independent multiply-adds in registers only, with the widest vectors there are, on the calling thread:
// `rounds` times enough of them to hide their latency. MultiplyAddFlops is how many operations that is.
float MultiplyAdds(std::int64_t rounds);
double MultiplyAddFlops(std::int64_t rounds);

}  // namespace comoe::kernels
