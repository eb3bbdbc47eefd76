// The header of a safetensors file: 8 bytes little-endian length, JSON, then the data of all tensors, without
// gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace comoe::checkpoint {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct HeaderEntry {
  std::string name;
  std::string dtype;  // one the format knows
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // by begin; together they cover the data exactly, without overlap
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t data_offset = 0;  // from the start of the file
};

// Reads and checks the header of a whole file in memory (only its header bytes are touched). INVALID_ARGUMENT
// names `file` and the tensor or field.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const std::byte> bytes,
                                                         absl::string_view file);

// Bits of an element, 0 for a dtype that the format does not know.
std::uint64_t SafetensorsDTypeBits(absl::string_view dtype);

}  // namespace comoe::checkpoint
