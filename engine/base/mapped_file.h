// The one way to read a file: mapped read-only, or whole into a string with a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace comoe::base {

// A read-only mapping of a regular file, held by inode: the file may be renamed or unlinked meanwhile, but
// one that is truncated while mapped raises SIGBUS (checkpoints must not be rewritten in place while served).
// Thread-safe after Open.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (a folder, a pipe), with the path in the message.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that these bytes will not be read again, so they stop counting as resident.
  void DropPages(std::size_t offset, std::size_t size) const;

 private:
  MappedFile(std::string path, const std::byte* data, std::size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  const std::string path_;
  const std::byte* const data_;
  const std::size_t size_;
};

// The whole file; RESOURCE_EXHAUSTED when it is longer than `limit_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::uint64_t limit_bytes);
// Writes through a temporary file and a rename, so that `path` is never half-written.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

}  // namespace comoe::base
