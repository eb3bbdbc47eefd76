// From tensors in a checkpoint to bytes in the layout of engine/tensor/packed_matrix.h: expert blobs and
// their index, and resident matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/weight_names.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::checkpoint {

// XXH3-64 of a blob.
std::uint64_t BlobChecksum(absl::Span<const std::byte> blob);

struct ExpertEntry {
  std::uint64_t offset = 0;  // from the start of the slab or file
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // 0 until the blob was packed
};

// Where the blob of each routed expert lies, layer after layer. All blobs have one layout. Thread-compatible:
// entries of different keys may be filled in from several threads at once.
class ExpertIndex {
 public:
  // Offsets are multiples of `alignment` (a power of two; kWeightAlignment in memory, 4096 in a file).
  static ExpertIndex Make(const ModelConfig& config, tensor::DType dtype,
                          std::size_t alignment = tensor::kWeightAlignment);

  const tensor::BlobLayout& layout() const { return layout_; }
  std::uint64_t total_bytes() const { return total_bytes_; }
  // Sparse layers only, experts of a layer in order.
  const std::vector<base::ExpertKey>& keys() const { return keys_; }
  // nullptr for a dense layer or an id out of range.
  const ExpertEntry* Find(base::ExpertKey key) const;
  ExpertEntry* Find(base::ExpertKey key);

  // DATA_LOSS names the expert when the bytes at base + offset do not have the recorded checksum.
  absl::Status Verify(base::ExpertKey key, const std::byte* base) const;

 private:
  tensor::BlobLayout layout_;
  std::int64_t num_experts_ = 0;
  std::vector<std::int64_t> first_entry_;  // of each layer; -1: dense
  std::vector<ExpertEntry> entries_;
  std::vector<base::ExpertKey> keys_;
  std::uint64_t total_bytes_ = 0;
};

// Packs the three matrices of one FFN (an expert, the shared expert, a dense layer) into `target` of
// layout.bytes bytes: gate and up in alternating panels, then down; every byte is written, fill and gaps with
// zero. Their pages are released in the source. Blocks; allocates only what the source allocates to read.
absl::Status PackFfn(const TensorSource& source, const FfnNames& names, const tensor::BlobLayout& layout,
                     absl::Span<std::byte> target);
absl::Status PackExpert(const TensorSource& source, const WeightNames& names, base::ExpertKey key,
                        const tensor::BlobLayout& layout, absl::Span<std::byte> target);
// PackExpert to its place in a slab of index->total_bytes(), and the checksum into the index.
absl::Status PackExpertInto(const TensorSource& source, const WeightNames& names, base::ExpertKey key,
                            ExpertIndex* index, absl::Span<std::byte> slab);

// The matrix whose rows are those of `names` one after the other (q, k and v; or a single name): [sum N, K],
// in panels.
absl::StatusOr<tensor::MatrixLayout> StackedLayout(const TensorSource& source,
                                                   absl::Span<const std::string> names);
// Packs it into `target` of layout.bytes() bytes, in the layout's order. Row counts need not be multiples of
// a panel.
absl::Status PackStacked(const TensorSource& source, absl::Span<const std::string> names,
                         const tensor::MatrixLayout& layout, absl::Span<std::byte> target);

// A whole tensor as floats: norms and biases.
absl::StatusOr<std::vector<float>> ReadFloats(const TensorSource& source, absl::string_view name);

}  // namespace comoe::checkpoint
