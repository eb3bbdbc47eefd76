// The disk tier: all expert blobs of one model in one file, in the layout that kernels read.
//
// A header on whole pages (what the blobs were made of and how they lie, an index with a checksum for each
// blob, a checksum of its own), then the blobs at multiples of 4096 bytes, so that they can be read with
// direct I/O: past the page cache, which would hold each blob a second time. Little-endian.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/expert_packer.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/weight_names.h"
#include "engine/tensor/dtype.h"

namespace comoe::experts {

// Bytes done and in all. Called on the loading thread.
using FileProgress = absl::FunctionRef<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

inline constexpr std::size_t kFileAlignment = 4096;

// What a packed file is made from. Everything outlives the calls it is passed to.
struct PackedFileSource {
  const checkpoint::TensorSource& tensors;
  const checkpoint::ModelConfig& config;
  const checkpoint::WeightNames& names;
  tensor::DType dtype = tensor::DType::kBf16;
  std::uint64_t model_hash = 0;  // ModelHash, or any number that changes with the weights
};

// A number for a model: its tensors' names, types and shapes, and the bytes of its routers, which no two
// models share. It does not read all weights, so a change to one expert alone goes unseen.
absl::StatusOr<std::uint64_t> ModelHash(const checkpoint::TensorSource& tensors,
                                        const checkpoint::ModelConfig& config,
                                        const checkpoint::WeightNames& names);

// Thread-safe.
class PackedFile {
 public:
  // Packs all experts, a layer at a time on all threads of `pool`, to a temporary file that is renamed to
  // `path` when it is complete. RESOURCE_EXHAUSTED when the disk is too small.
  static absl::Status Write(const std::string& path, const PackedFileSource& source, base::ThreadPool& pool,
                            FileProgress progress);
  // NOT_FOUND; FAILED_PRECONDITION when it was made from something else, and what; DATA_LOSS when it is cut
  // short or its header is damaged. Blobs are checked when they are read.
  static absl::StatusOr<std::unique_ptr<PackedFile>> Open(const std::string& path,
                                                          const PackedFileSource& source);
  // Opens it, with `verify` after reading it all, or writes it anew, and says in the log why.
  static absl::StatusOr<std::unique_ptr<PackedFile>> OpenOrBuild(const std::string& path,
                                                                 const PackedFileSource& source, bool verify,
                                                                 base::ThreadPool& pool,
                                                                 FileProgress progress);
  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  const checkpoint::ExpertIndex& index() const { return index_; }
  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return header_bytes_ + index_.total_bytes(); }
  // What a target of Read has: the blob on whole pages.
  std::size_t read_bytes() const { return read_bytes_; }
  // False where the file system refuses direct I/O.
  bool direct() const { return direct_fd_.load(std::memory_order_relaxed) >= 0; }

  // Reads a blob to `target`, which is aligned to 4096 bytes and has read_bytes() of them, and compares its
  // checksum: DATA_LOSS names the expert. Blocks.
  absl::Status Read(base::ExpertKey key, std::byte* target) const;
  // Reads everything.
  absl::Status VerifyAll(FileProgress progress) const;

 private:
  PackedFile(std::string path, int fd, int direct_fd, std::uint64_t header_bytes,
             checkpoint::ExpertIndex index);
  // Of direct I/O no more, after a refusal.
  void GiveUpDirect() const;

  const std::string path_;
  const int fd_;
  mutable std::atomic<int> direct_fd_;  // -1: refused
  const int opened_direct_fd_;
  const std::uint64_t header_bytes_;
  const checkpoint::ExpertIndex index_;
  std::size_t read_bytes_ = 0;
};

}  // namespace comoe::experts
