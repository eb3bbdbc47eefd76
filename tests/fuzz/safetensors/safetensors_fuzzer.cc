// Any bytes as a safetensors file: the header parser refuses them with one line, or what it accepted holds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/types/span.h"
#include "engine/checkpoint/safetensors_header.h"

namespace {

void Require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto header = comoe::checkpoint::ParseSafetensorsHeader(bytes, "fuzz.safetensors");
  if (!header.ok()) {
    const auto message = header.status().message();
    Require(message.substr(0, 18) == "fuzz.safetensors: ");
    Require(message.find('\n') == message.npos);
    return 0;
  }
  Require(header->data_offset <= size);
  std::uint64_t covered = 0;
  for (const auto& entry : header->entries) {
    Require(entry.begin == covered && entry.end >= entry.begin);
    covered = entry.end;
    std::uint64_t bits = comoe::checkpoint::SafetensorsDTypeBits(entry.dtype);
    Require(bits > 0);
    for (const std::int64_t dimension : entry.shape) {
      Require(dimension >= 0);
      bits = dimension == 0 ? 0 : bits;
    }
    for (const std::int64_t dimension : entry.shape) {
      bits *= static_cast<std::uint64_t>(dimension);  // cannot overflow: checked, or zero already
    }
    Require(bits == 8 * (entry.end - entry.begin));
  }
  Require(header->data_offset + covered == size);
  return 0;
}
