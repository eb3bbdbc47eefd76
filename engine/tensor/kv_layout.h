// The one definition of how keys and values of one decoder layer lie in memory.
//
// Positions are kept in blocks of kKvBlockTokens. A block holds, for each KV head, its keys transposed, so
// that the scores of 16 positions are one vector, and its values:
//
//   block b: | head 0: keys, values | head 1: ... |
//
// Floats, float32 or binary16:  keys [P, 16]         values [16, P]
// kQ8, signed bytes:            keys [P/2, 16, 2]    values [8, P, 2]
//                               scales [groups, 16]  scales [groups, 16]   (behind the keys, or values)
//
// Bytes lie in pairs of dimensions (keys) or positions (values), because processors multiply and add integers
// in pairs; an odd P is rounded up, and the holes may hold anything. A position's number is the byte times
// the float32 scale of its group of kKvGroupDims dimensions (the last may be smaller).
//
// Kernels are written once over the stored type: float, the bits of a binary16, or such a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/base/check.h"
#include "engine/base/ids.h"
#include "engine/tensor/dtype.h"

namespace comoe::tensor {

inline constexpr std::int64_t kKvBlockTokens = 16;
inline constexpr std::int64_t kKvGroupDims = 32;

// Whether numbers of this stored type mean something only together with the scale of their group.
template <typename T>
inline constexpr bool kHasKvScales = std::is_same_v<T, std::int8_t>;

struct KvLayout {
  std::int64_t kv_heads = 0;  // G
  std::int64_t head_dim = 0;  // P
  DType dtype = DType::kF32;  // or kF16, kQ8

  constexpr std::int64_t stored_dim() const {
    return dtype == DType::kQ8 ? (head_dim + 1) / 2 * 2 : head_dim;
  }
  constexpr std::int64_t key_elements() const { return stored_dim() * kKvBlockTokens; }
  constexpr std::int64_t block_elements() const { return 2 * kv_heads * key_elements(); }
  // Where number p of the position in slot `slot` lies.
  constexpr std::int64_t key_at(std::int64_t p, std::int64_t slot) const {
    return dtype == DType::kQ8 ? (p / 2 * kKvBlockTokens + slot) * 2 + p % 2 : p * kKvBlockTokens + slot;
  }
  constexpr std::int64_t value_at(std::int64_t p, std::int64_t slot) const {
    return dtype == DType::kQ8 ? (slot / 2 * stored_dim() + p) * 2 + slot % 2 : slot * head_dim + p;
  }
  constexpr std::int64_t groups() const { return (head_dim + kKvGroupDims - 1) / kKvGroupDims; }
  // Of the keys, or the values, of one head of a block.
  constexpr std::size_t scale_bytes() const {
    return dtype == DType::kQ8 ? static_cast<std::size_t>(groups() * kKvBlockTokens) * sizeof(float) : 0;
  }
  constexpr std::size_t piece_bytes() const {
    return static_cast<std::size_t>(key_elements()) * DTypeBytes(dtype) + scale_bytes();
  }
  constexpr std::size_t block_bytes() const { return static_cast<std::size_t>(2 * kv_heads) * piece_bytes(); }
  constexpr std::size_t position_bytes() const {
    return block_bytes() / static_cast<std::size_t>(kKvBlockTokens);
  }
};

// All blocks of one layer; block ids index it. T is the stored type of the layout's dtype.
struct KvView {
  std::byte* data = nullptr;
  std::int64_t num_blocks = 0;
  KvLayout layout;

  std::byte* block(base::BlockId block) const {
    return data + static_cast<std::size_t>(block.value) * layout.block_bytes();
  }
  template <typename T>
  T* keys(base::BlockId id, std::int64_t head) const {
    COMOE_DCHECK(sizeof(T) == DTypeBytes(layout.dtype), "the stored type is that of the layout");
    return reinterpret_cast<T*>(block(id) + static_cast<std::size_t>(2 * head) * layout.piece_bytes());
  }
  template <typename T>
  T* values(base::BlockId id, std::int64_t head) const {
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(keys<T>(id, head)) + layout.piece_bytes());
  }
  // [groups, 16] of kQ8, of the keys, or values, that `piece` points to.
  float* scales(std::int8_t* piece) const { return reinterpret_cast<float*>(piece + layout.key_elements()); }
};

// One element to its stored type and back. What a half cannot hold becomes its largest finite value: an
// infinite key or value would make rows NaN that are only imprecise otherwise.
inline void StoreKv(float value, float* to) { *to = value; }
inline void StoreKv(float value, std::uint16_t* to) { *to = FloatToFiniteF16(value); }
inline float LoadKv(const float* from) { return *from; }
inline float LoadKv(const std::uint16_t* from) { return F16ToFloat(*from); }

// Turns the n <= kKvGroupDims numbers of a group into integers of [-127, 127] and returns their scale: number
// i is to[i] times that, rounded to nearest even. Numbers beyond the largest finite half count as that, as
// they do in binary16; a NaN makes the scale NaN, and so the whole group. Groups below 1e-30 are zeros. No
// branch or call within the loops, so that they are made of vectors.
inline float QuantizeKvGroup(const float* from, std::int64_t n, std::int8_t* to) {
  constexpr float kLargest = 65504.0F;
  constexpr float kSmallest = 1e-30F;  // 127 / it is finite, and so are all scales that matter
  constexpr std::int32_t kInfinity = 0x7f800000;
  std::int32_t bits = 0;  // of the largest magnitude: they are ordered as magnitudes are, NaN last
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(from[i]) & 0x7fffffff;
    bits = bits < magnitude ? magnitude : bits;
  }
  const auto seen = std::bit_cast<float>(bits);
  const float largest = seen < kLargest ? seen : kLargest;
  const bool all_zeros = bits > kInfinity || largest < kSmallest;
  const float inverse = all_zeros ? 0.0F : 127.0F / largest;
  const float limit = all_zeros ? 0.0F : largest;
  for (std::int64_t i = 0; i < n; ++i) {
    const float low = from[i] > -limit ? from[i] : -limit;
    const float value = low < limit ? low : limit;
    // 1.5 * 2^23: what is added to it is rounded to an integer in the last bits of the mantissa.
    const auto rounded = std::bit_cast<std::int32_t>(value * inverse + 12582912.0F);
    to[i] = static_cast<std::int8_t>(rounded - std::bit_cast<std::int32_t>(12582912.0F));
  }
  return bits > kInfinity ? seen : all_zeros ? 0.0F : largest / 127.0F;
}

// Calls fn with a value of the stored type.
template <typename Fn>
auto WithStoredType(const KvLayout& layout, const Fn& fn) {
  switch (layout.dtype) {
    case DType::kF16:
      return fn(std::uint16_t{});
    case DType::kQ8:
      return fn(std::int8_t{});
    case DType::kF32:
    case DType::kBf16:  // no layout is
      break;
  }
  return fn(float{});
}

}  // namespace comoe::tensor
