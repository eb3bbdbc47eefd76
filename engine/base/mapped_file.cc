#include "engine/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"

namespace comoe::base {
namespace {

absl::Status ErrnoError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

// An open descriptor of a regular file and its size.
absl::StatusOr<int> OpenRegular(const std::string& path, std::uint64_t* size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return ErrnoError("cannot open", path);
  }
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    const absl::Status status = ErrnoError("cannot stat", path);
    ::close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  *size = static_cast<std::uint64_t>(info.st_size);
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  std::uint64_t size = 0;
  COMOE_ASSIGN_OR_RETURN(const int fd, OpenRegular(path, &size));
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  if (size == 0) {
    return std::unique_ptr<MappedFile>(new MappedFile(path, nullptr, 0));
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) {
    return ErrnoError("cannot map", path);
  }
  return std::unique_ptr<MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::DropPages(std::size_t offset, std::size_t size) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = AlignUp(offset, page);
  const std::size_t end = std::min(offset + size, size_) / page * page;
  if (begin < end) {
    // Advice only: a refusal costs memory, not correctness.
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path, std::uint64_t limit_bytes) {
  std::uint64_t size = 0;
  COMOE_ASSIGN_OR_RETURN(const int fd, OpenRegular(path, &size));
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  if (size > limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(path, " has ", FormatBytes(size), ", more than the ",
                                                     FormatBytes(limit_bytes), " accepted here"));
  }
  std::string content(size, '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(fd, content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return ErrnoError("cannot read", path);
    }
    if (got == 0) {
      break;
    }
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".tmp.", ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return ErrnoError("cannot create", temporary);
  }
  absl::Status status;
  std::size_t done = 0;
  while (status.ok() && done < content.size()) {
    const ssize_t put = ::write(fd, content.data() + done, content.size() - done);
    if (put < 0 && errno != EINTR) {
      status = ErrnoError("cannot write", temporary);
    } else if (put > 0) {
      done += static_cast<std::size_t>(put);
    }
  }
  if (status.ok() && ::fsync(fd) != 0) {
    status = ErrnoError("cannot flush", temporary);
  }
  ::close(fd);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoError("cannot rename to", path);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
  }
  return status;
}

}  // namespace comoe::base
