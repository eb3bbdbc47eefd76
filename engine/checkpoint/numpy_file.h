// Arrays of NumPy files (.npy inside .npz), for routing traces. Files are hostile: every length is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace comoe::checkpoint {

enum class NumpyDType { kU8, kU16, kI32, kI64, kF32 };
constexpr std::size_t NumpyDTypeBytes(NumpyDType dtype) {
  switch (dtype) {
    case NumpyDType::kU8:
      return 1;
    case NumpyDType::kU16:
      return 2;
    case NumpyDType::kI32:
    case NumpyDType::kF32:
      return 4;
    case NumpyDType::kI64:
      return 8;
  }
  return 0;
}

// Little-endian, C order.
struct NumpyArray {
  NumpyDType dtype = NumpyDType::kU8;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  std::int64_t num_elements() const {
    return static_cast<std::int64_t>(bytes.size() / NumpyDTypeBytes(dtype));
  }
  // Element i in C order; i < num_elements(), and dtype is not kF32.
  std::int64_t IntegerAt(std::int64_t i) const;
};

// One .npy file in memory. `name` is what messages call it.
absl::StatusOr<NumpyArray> ParseNpy(absl::Span<const std::byte> bytes, absl::string_view name);

// Every array of an .npz file by name (without ".npy"). RESOURCE_EXHAUSTED when the arrays together are
// longer than `limit_bytes` once unpacked, whatever the archive claims.
absl::StatusOr<absl::btree_map<std::string, NumpyArray>> ReadNpz(const std::string& path,
                                                                 std::uint64_t limit_bytes);

}  // namespace comoe::checkpoint
