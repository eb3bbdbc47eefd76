// Byte counts as people write and read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace comoe::base {

// "1536" "64KiB" "1.5GiB" "2GB" -> bytes. INVALID_ARGUMENT names the text and the accepted forms.
absl::StatusOr<std::uint64_t> ParseBytes(absl::string_view text);
// 26214400 -> "25.0 MiB"
std::string FormatBytes(std::uint64_t bytes);

constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// False, and *out untouched, when the product or sum does not fit: sizes read from files are multiplied with
// these.
[[nodiscard]] inline bool CheckedMul(std::uint64_t a, std::uint64_t b, std::uint64_t* out) {
  std::uint64_t product = 0;  // the builtin stores the wrapped value even when it reports an overflow
  if (__builtin_mul_overflow(a, b, &product)) {
    return false;
  }
  *out = product;
  return true;
}
[[nodiscard]] inline bool CheckedAdd(std::uint64_t a, std::uint64_t b, std::uint64_t* out) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return false;
  }
  *out = sum;
  return true;
}

}  // namespace comoe::base
