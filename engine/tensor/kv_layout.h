// The one definition of how keys and values of one decoder layer lie in memory.
//
// Positions are kept in blocks of kKvBlockTokens. A block holds, for each KV head, its keys transposed
// [P, 16] (so that the scores of 16 positions are one vector) and its values [16, P], float32 or binary16:
//
//   block b: | head 0: keys [P, 16] values [16, P] | head 1: ... |
//
// Kernels are written once over the stored type: float, or the bits of a binary16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/check.h"
#include "engine/base/ids.h"
#include "engine/tensor/dtype.h"

namespace comoe::tensor {

inline constexpr std::int64_t kKvBlockTokens = 16;

struct KvLayout {
  std::int64_t kv_heads = 0;  // G
  std::int64_t head_dim = 0;  // P
  DType dtype = DType::kF32;  // or kF16

  constexpr std::int64_t key_elements() const { return head_dim * kKvBlockTokens; }
  constexpr std::int64_t head_elements() const { return 2 * key_elements(); }
  constexpr std::int64_t block_elements() const { return kv_heads * head_elements(); }
  constexpr std::size_t block_bytes() const {
    return static_cast<std::size_t>(block_elements()) * DTypeBytes(dtype);
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
    constexpr std::size_t kBytes = sizeof(T);
    COMOE_DCHECK(kBytes == DTypeBytes(layout.dtype), "the stored type is that of the layout");
    return reinterpret_cast<T*>(block(id)) + head * layout.head_elements();
  }
  template <typename T>
  T* values(base::BlockId id, std::int64_t head) const {
    return keys<T>(id, head) + layout.key_elements();
  }
};

// One element to its stored type and back. What a half cannot hold becomes its largest finite value: an
// infinite key or value would make rows NaN that are only imprecise otherwise.
inline void StoreKv(float value, float* to) { *to = value; }
inline void StoreKv(float value, std::uint16_t* to) { *to = FloatToFiniteF16(value); }
inline float LoadKv(const float* from) { return *from; }
inline float LoadKv(const std::uint16_t* from) { return F16ToFloat(*from); }

// Calls fn with a value of the stored type.
template <typename Fn>
auto WithStoredType(const KvLayout& layout, const Fn& fn) {
  return layout.dtype == DType::kF16 ? fn(std::uint16_t{}) : fn(float{});
}

}  // namespace comoe::tensor
