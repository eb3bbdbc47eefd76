// Named tensors of a checkpoint, wherever they come from: safetensors files, a widened view of another
// source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tensor/dtype.h"

namespace comoe::checkpoint {

struct TensorInfo {
  std::string name;
  tensor::DType dtype = tensor::DType::kBf16;
  std::string stored_dtype;         // as the file spells it: "BF16", "F8_E4M3", ...
  bool readable = true;             // false: stored_dtype is none of tensor::DType; Read refuses it
  std::vector<std::int64_t> shape;  // every dimension checked: product * bytes fits in memory
  std::uint64_t bytes = 0;
  std::string file;  // for messages
};

// Bytes of one tensor, row-major, valid while this lives. Either a window into a mapping or owned.
struct TensorData {
  absl::Span<const std::byte> bytes;
  std::unique_ptr<std::byte[]> owned;  // null when the source holds the bytes
};

// Thread-safe after it was opened.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual std::vector<std::string> Names() const = 0;  // sorted
  // nullptr when there is no such tensor.
  virtual const TensorInfo* Find(absl::string_view name) const = 0;
  // UNIMPLEMENTED when it is not readable.
  virtual absl::StatusOr<TensorData> Read(const TensorInfo& info) const = 0;
  // The bytes of this tensor will not be read again soon: mapped pages may be dropped.
  virtual void Release(const TensorInfo& info) const = 0;
};

// Opens DIR/model.safetensors, or the shards of DIR/model.safetensors.index.json. Everything in the headers
// is checked before use; INVALID_ARGUMENT names file and field.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensorsFile(const std::string& path);  // one file
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensors(const std::string& directory);

}  // namespace comoe::checkpoint
