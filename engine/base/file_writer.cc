#include "engine/base/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::base {

absl::StatusOr<std::unique_ptr<AtomicFileWriter>> AtomicFileWriter::Create(const std::string& path) {
  std::string temporary = absl::StrCat(path, ".tmp.", ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", temporary));
  }
  return std::unique_ptr<AtomicFileWriter>(new AtomicFileWriter(path, std::move(temporary), fd));
}

AtomicFileWriter::AtomicFileWriter(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

absl::Status AtomicFileWriter::Append(absl::string_view bytes) {
  if (fd_ < 0) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is complete already"));
  }
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", temporary_));
    }
    done += put > 0 ? static_cast<std::size_t>(put) : 0;
  }
  return absl::OkStatus();
}

absl::Status AtomicFileWriter::Commit() {
  if (fd_ < 0) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is complete already"));
  }
  if (::fsync(fd_) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot flush ", temporary_));
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename to ", path_));
  }
  ::close(fd_);
  fd_ = -1;
  return absl::OkStatus();
}

}  // namespace comoe::base
