// Writes a file piece by piece, with bounded memory, so that its path is never half-written.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace comoe::base {

// A temporary file beside `path` that takes its name when it is complete; removed if it never is. Not
// thread-safe.
class AtomicFileWriter {
 public:
  // Errors carry the path.
  static absl::StatusOr<std::unique_ptr<AtomicFileWriter>> Create(const std::string& path);
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  // Blocks on the disk.
  absl::Status Append(absl::string_view bytes);
  // Flushes and renames; nothing may be appended afterwards.
  absl::Status Commit();

 private:
  AtomicFileWriter(std::string path, std::string temporary, int fd);

  const std::string path_;
  const std::string temporary_;
  int fd_;  // -1: committed
};

}  // namespace comoe::base
