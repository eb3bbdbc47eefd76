#include "engine/experts/packed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/bytes.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace comoe::experts {
namespace {

constexpr std::array<char, 8> kMagic = {'C', 'O', 'M', 'O', 'E', 'X', 'P', 'T'};
constexpr std::uint32_t kVersion = 1;

// What the file begins with; entries follow.
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t dtype = 0;
  std::uint64_t checksum = 0;  // of header and entries, with this 0
  std::uint64_t model_hash = 0;
  std::uint64_t hidden = 0;
  std::uint64_t intermediate = 0;
  std::uint64_t gate_up_offset = 0;
  std::uint64_t down_offset = 0;
  std::uint64_t blob_bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t header_bytes = 0;  // up to the first blob
  std::uint64_t file_bytes = 0;
};

struct Entry {
  std::int32_t layer = 0;
  std::int32_t expert = 0;
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

// Written as they lie in memory.
static_assert(sizeof(Header) == 96 && sizeof(Entry) == 32);

absl::Status ErrnoError(absl::string_view what, const std::string& path) {
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " ", path, ": the disk is full"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

std::uint64_t HeaderBytes(const checkpoint::ExpertIndex& index) {
  return base::AlignUp(sizeof(Header) + index.keys().size() * sizeof(Entry), kFileAlignment);
}

Header MakeHeader(const PackedFileSource& source, const checkpoint::ExpertIndex& index) {
  const tensor::BlobLayout& layout = index.layout();
  Header header;
  header.dtype = static_cast<std::uint32_t>(source.dtype);
  header.model_hash = source.model_hash;
  header.hidden = static_cast<std::uint64_t>(layout.hidden);
  header.intermediate = static_cast<std::uint64_t>(layout.intermediate);
  header.gate_up_offset = layout.gate_up_offset;
  header.down_offset = layout.down_offset;
  header.blob_bytes = layout.bytes;
  header.count = index.keys().size();
  header.header_bytes = HeaderBytes(index);
  header.file_bytes = header.header_bytes + index.total_bytes();
  return header;
}

// Header and index as they lie in the file, checksum included.
std::vector<std::byte> HeaderPages(const PackedFileSource& source, const checkpoint::ExpertIndex& index) {
  Header header = MakeHeader(source, index);
  std::vector<std::byte> pages(header.header_bytes);
  std::byte* at = pages.data() + sizeof(Header);
  for (const base::ExpertKey key : index.keys()) {
    const checkpoint::ExpertEntry& found = *index.Find(key);
    const Entry entry = {key.layer, key.expert, header.header_bytes + found.offset, found.bytes,
                         found.checksum};
    std::memcpy(at, &entry, sizeof(Entry));
    at += sizeof(Entry);
  }
  std::memcpy(pages.data(), &header, sizeof(Header));
  header.checksum = checkpoint::BlobChecksum(pages);
  std::memcpy(pages.data(), &header, sizeof(Header));
  return pages;
}

absl::Status WriteAt(int fd, const std::string& path, absl::Span<const std::byte> bytes,
                     std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno != EINTR) {
      return ErrnoError("cannot write", path);
    }
    if (put > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
  }
  return absl::OkStatus();
}

// EINVAL is returned as INVALID_ARGUMENT: what a file system says that does no direct I/O.
absl::Status ReadAt(int fd, const std::string& path, std::byte* target, std::size_t bytes,
                    std::uint64_t offset) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(fd, target + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno != EINTR) {
      return ErrnoError("cannot read", path);
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path, " ends after ", offset + done, " bytes"));
    }
    done += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return absl::OkStatus();
}

absl::Status PackLayer(const PackedFileSource& source, absl::Span<const base::ExpertKey> keys,
                       checkpoint::ExpertIndex& index, std::size_t stride, base::ThreadPool& pool,
                       std::vector<std::byte>& layer) {
  std::vector<absl::Status> results(keys.size());
  pool.ParallelFor(static_cast<std::int64_t>(keys.size()), [&](std::int64_t task, int /*worker*/) {
    const auto i = static_cast<std::size_t>(task);
    const absl::Span<std::byte> blob(layer.data() + i * stride, index.layout().bytes);
    results[i] = checkpoint::PackExpert(source.tensors, source.names, keys[i], index.layout(), blob);
    if (results[i].ok()) {
      index.Find(keys[i])->checksum = checkpoint::BlobChecksum(blob);
    }
  });
  for (std::size_t i = 0; i < keys.size(); ++i) {
    COMOE_RETURN_IF_ERROR(
        base::Annotate(results[i], absl::StrCat("layer ", keys[i].layer, " expert ", keys[i].expert)));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const std::string& path, const PackedFileSource& source, base::ThreadPool& pool,
                      FileProgress progress) {
  checkpoint::ExpertIndex index = checkpoint::ExpertIndex::Make(source.config, source.dtype, kFileAlignment);
  const std::uint64_t header_bytes = HeaderBytes(index);
  const std::size_t stride = base::AlignUp(index.layout().bytes, kFileAlignment);
  // A disk that is too small is found out now, not after half an hour.
  if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(header_bytes + index.total_bytes()));
      error == ENOSPC || error == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", base::FormatBytes(header_bytes + index.total_bytes()), " of disk for ", path));
  }
  const absl::Span<const base::ExpertKey> keys = index.keys();
  std::vector<std::byte> layer;
  std::uint64_t done = 0;
  for (std::size_t begin = 0; begin < keys.size();) {
    std::size_t end = begin;
    while (end < keys.size() && keys[end].layer == keys[begin].layer) {
      ++end;
    }
    layer.assign((end - begin) * stride, std::byte{0});
    COMOE_RETURN_IF_ERROR(PackLayer(source, keys.subspan(begin, end - begin), index, stride, pool, layer));
    const std::uint64_t offset = header_bytes + index.Find(keys[begin])->offset;
    COMOE_RETURN_IF_ERROR(WriteAt(fd, path, layer, offset));
    // What was written would fill the page cache, and push out the checkpoint that is still to be read.
    if (::fdatasync(fd) != 0) {
      return ErrnoError("cannot flush", path);
    }
    ::posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(layer.size()), POSIX_FADV_DONTNEED);
    done += layer.size();
    progress(done, index.total_bytes());
    begin = end;
  }
  COMOE_RETURN_IF_ERROR(WriteAt(fd, path, HeaderPages(source, index), 0));
  return ::fsync(fd) == 0 ? absl::OkStatus() : ErrnoError("cannot flush", path);
}

// That the new name survives a power cut.
void FlushFolder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

absl::Status CheckSettings(const std::string& path, const Header& found, const Header& wanted) {
  const auto stale = [&](absl::string_view what, std::uint64_t has, std::uint64_t want) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was made from something else: ", what, " is ", has, ", and would be ", want));
  };
  struct Field {
    absl::string_view name;
    std::uint64_t has;
    std::uint64_t want;
  };
  for (const Field& field : {Field{"the model's hash", found.model_hash, wanted.model_hash},
                             Field{"the dtype", found.dtype, wanted.dtype},
                             Field{"the number of experts", found.count, wanted.count},
                             Field{"the hidden size", found.hidden, wanted.hidden},
                             Field{"the experts' width", found.intermediate, wanted.intermediate},
                             Field{"a blob's size", found.blob_bytes, wanted.blob_bytes},
                             Field{"gate and up's offset", found.gate_up_offset, wanted.gate_up_offset},
                             Field{"down's offset", found.down_offset, wanted.down_offset},
                             Field{"the header's size", found.header_bytes, wanted.header_bytes},
                             Field{"the file's size", found.file_bytes, wanted.file_bytes}}) {
    if (field.has != field.want) {
      return stale(field.name, field.has, field.want);
    }
  }
  return absl::OkStatus();
}

// Settings, then the header's checksum, then every entry: a file of another model is stale, not damaged.
absl::Status ReadHeader(int fd, const std::string& path, const PackedFileSource& source,
                        checkpoint::ExpertIndex& index) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    return ErrnoError("cannot stat", path);
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  const Header wanted = MakeHeader(source, index);
  Header header;
  if (!S_ISREG(info.st_mode) || size < sizeof(Header)) {
    return absl::DataLossError(absl::StrCat(path, " is no packed file: ", size, " bytes"));
  }
  COMOE_RETURN_IF_ERROR(ReadAt(fd, path, reinterpret_cast<std::byte*>(&header), sizeof(Header), 0));
  if (header.magic != kMagic) {
    return absl::DataLossError(absl::StrCat(path, " is no packed file, or was not finished"));
  }
  if (header.version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has version ", header.version, "; this build reads ", kVersion));
  }
  COMOE_RETURN_IF_ERROR(CheckSettings(path, header, wanted));
  if (size != wanted.file_bytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", size, " bytes instead of ", wanted.file_bytes));
  }
  std::vector<std::byte> pages(wanted.header_bytes);
  COMOE_RETURN_IF_ERROR(ReadAt(fd, path, pages.data(), pages.size(), 0));
  Header blank = header;
  blank.checksum = 0;
  std::memcpy(pages.data(), &blank, sizeof(Header));
  if (checkpoint::BlobChecksum(pages) != header.checksum) {
    return absl::DataLossError(absl::StrCat(path, ": the header does not match its checksum"));
  }
  const std::byte* at = pages.data() + sizeof(Header);
  for (const base::ExpertKey key : index.keys()) {
    Entry entry;
    std::memcpy(&entry, at, sizeof(Entry));
    at += sizeof(Entry);
    checkpoint::ExpertEntry& found = *index.Find(key);
    if (entry.layer != key.layer || entry.expert != key.expert || entry.bytes != found.bytes ||
        entry.offset != wanted.header_bytes + found.offset) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " holds other experts: no entry for layer ", key.layer, " expert ", key.expert));
    }
    found.checksum = entry.checksum;
  }
  return absl::OkStatus();
}

struct FreeAligned {
  void operator()(std::byte* data) const { std::free(data); }
};

std::uint64_t Mix(std::uint64_t hash, absl::Span<const std::byte> bytes) {
  const std::array<std::uint64_t, 2> both = {hash, checkpoint::BlobChecksum(bytes)};
  return checkpoint::BlobChecksum({reinterpret_cast<const std::byte*>(both.data()), sizeof(both)});
}

}  // namespace

absl::StatusOr<std::uint64_t> ModelHash(const checkpoint::TensorSource& tensors,
                                        const checkpoint::ModelConfig& config,
                                        const checkpoint::WeightNames& names) {
  std::uint64_t hash = 0;
  for (const std::string& name : tensors.Names()) {
    const checkpoint::TensorInfo& info = *tensors.Find(name);
    const std::string text = absl::StrCat(name, " ", info.stored_dtype, " ", info.bytes);
    hash = Mix(hash, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    if (!config.layers[static_cast<std::size_t>(l)].sparse) {
      continue;
    }
    const checkpoint::TensorInfo* router = tensors.Find(names.layer(l).router);
    if (router == nullptr) {
      return absl::NotFoundError(absl::StrCat("layer ", l, " has no router"));
    }
    COMOE_ASSIGN_OR_RETURN(const checkpoint::TensorData data, tensors.Read(*router));
    hash = Mix(hash, data.bytes);
  }
  return hash;
}

absl::Status PackedFile::Write(const std::string& path, const PackedFileSource& source,
                               base::ThreadPool& pool, FileProgress progress) {
  const std::string temporary = absl::StrCat(path, ".tmp.", ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return ErrnoError("cannot create", temporary);
  }
  absl::Status status = WriteAll(fd, temporary, source, pool, progress);
  ::close(fd);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoError("cannot rename to", path);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  FlushFolder(path);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PackedFile>> PackedFile::Open(const std::string& path,
                                                             const PackedFileSource& source) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return ErrnoError("cannot open", path);
  }
  checkpoint::ExpertIndex index = checkpoint::ExpertIndex::Make(source.config, source.dtype, kFileAlignment);
  if (absl::Status status = ReadHeader(fd, path, source, index); !status.ok()) {
    ::close(fd);
    return status;
  }
  const int direct_fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  const std::uint64_t header_bytes = HeaderBytes(index);
  std::unique_ptr<PackedFile> file(new PackedFile(path, fd, direct_fd, header_bytes, std::move(index)));
  if (direct_fd < 0) {
    file->GiveUpDirect();
  }
  return file;
}

absl::StatusOr<std::unique_ptr<PackedFile>> PackedFile::OpenOrBuild(const std::string& path,
                                                                    const PackedFileSource& source,
                                                                    bool verify, base::ThreadPool& pool,
                                                                    FileProgress progress) {
  absl::StatusOr<std::unique_ptr<PackedFile>> file = Open(path, source);
  absl::Status why = file.status();
  if (why.ok() && verify) {
    why = (*file)->VerifyAll(progress);
  }
  if (why.ok()) {
    return file;
  }
  if (!absl::IsNotFound(why) && !absl::IsFailedPrecondition(why) && !absl::IsDataLoss(why)) {
    return why;
  }
  base::Logf(base::LogLevel::kWarning, "experts", "packing all experts to %s, since: %s", path,
             std::string(why.message()));
  COMOE_RETURN_IF_ERROR(Write(path, source, pool, progress));
  return Open(path, source);
}

PackedFile::PackedFile(std::string path, int fd, int direct_fd, std::uint64_t header_bytes,
                       checkpoint::ExpertIndex index)
    : path_(std::move(path)),
      fd_(fd),
      direct_fd_(direct_fd),
      opened_direct_fd_(direct_fd),
      header_bytes_(header_bytes),
      index_(std::move(index)),
      read_bytes_(base::AlignUp(index_.layout().bytes, kFileAlignment)) {}

PackedFile::~PackedFile() {
  if (opened_direct_fd_ >= 0) {
    ::close(opened_direct_fd_);
  }
  ::close(fd_);
}

void PackedFile::GiveUpDirect() const {
  direct_fd_.store(-1, std::memory_order_relaxed);
  base::Logf(base::LogLevel::kWarning, "experts",
             "%s: the file system refuses direct I/O; experts are read through the page cache, which holds "
             "them a second time",
             path_);
}

absl::Status PackedFile::Read(base::ExpertKey key, std::byte* target) const {
  const checkpoint::ExpertEntry* entry = index_.Find(key);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat("no blob for layer ", key.layer, " expert ", key.expert));
  }
  const std::uint64_t offset = header_bytes_ + entry->offset;
  absl::Status read = absl::InvalidArgumentError("");
  if (const int direct_fd = direct_fd_.load(std::memory_order_relaxed); direct_fd >= 0) {
    read = ReadAt(direct_fd, path_, target, read_bytes_, offset);
    if (absl::IsInvalidArgument(read)) {
      GiveUpDirect();
    }
  }
  if (absl::IsInvalidArgument(read)) {
    read = ReadAt(fd_, path_, target, read_bytes_, offset);
  }
  COMOE_RETURN_IF_ERROR(read);
  if (const std::uint64_t found = checkpoint::BlobChecksum({target, entry->bytes});
      found != entry->checksum) {
    return absl::DataLossError(
        absl::StrFormat("%s: layer %d expert %d: checksum is %016x, recorded was %016x", path_, key.layer,
                        key.expert, found, entry->checksum));
  }
  return absl::OkStatus();
}

absl::Status PackedFile::VerifyAll(FileProgress progress) const {
  const std::unique_ptr<std::byte, FreeAligned> blob(
      static_cast<std::byte*>(std::aligned_alloc(kFileAlignment, read_bytes_)));
  if (blob == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", read_bytes_, " bytes to read a blob into"));
  }
  std::uint64_t done = 0;
  for (const base::ExpertKey key : index_.keys()) {
    COMOE_RETURN_IF_ERROR(Read(key, blob.get()));
    done += read_bytes_;
    progress(done, index_.total_bytes());
  }
  return absl::OkStatus();
}

}  // namespace comoe::experts
