#include "engine/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/bytes.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/messages.h"
#include "engine/checkpoint/safetensors_header.h"
#include "nlohmann/json.hpp"

namespace comoe::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::array<const char*, 3> kCopied = {"tokenizer.json", "tokenizer_config.json",
                                                "generation_config.json"};
constexpr const char* kPartialSuffix = ".partial";
constexpr std::uint64_t kMaxCopiedBytes = std::uint64_t{1} << 30;
// Written into each shard's metadata, and the sign by which a later call knows a folder that it may replace.
constexpr const char* kMarkKey = "written_by";
constexpr const char* kMarkValue = "comoe";

bool IsShardName(absl::string_view name) {
  return absl::StartsWith(name, "model") && absl::EndsWith(name, ".safetensors");
}

// True for a file that only this writer makes: a shard with its mark.
bool HasMark(const std::string& path) {
  const auto file = base::MappedFile::Open(path);
  if (!file.ok()) {
    return false;
  }
  const auto header = ParseSafetensorsHeader((*file)->bytes(), path);
  return header.ok() &&
         std::find(header->metadata.begin(), header->metadata.end(),
                   std::make_pair(std::string(kMarkKey), std::string(kMarkValue))) != header->metadata.end();
}

// The files of an earlier call in `directory`; FAILED_PRECONDITION when it holds anything else. Files without
// a mark of their own count as ours beside a shard that has one.
absl::StatusOr<std::vector<std::string>> ListOwnFiles(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> own;
  bool marked = false;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code type_error;
    const bool regular = it->is_regular_file(type_error) && !it->is_symlink(type_error);
    const bool partial = absl::EndsWith(name, kPartialSuffix);
    const bool known = name == kConfig || name == kIndexFile ||
                       std::find(kCopied.begin(), kCopied.end(), name) != kCopied.end();
    const bool shard = IsShardName(name) && HasMark(it->path().string());
    if (!regular || !(partial || known || shard)) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory, " is not empty: it holds ", Quoted(name),
                       ", which this program did not write; name a new folder"));
    }
    marked = marked || shard || partial;
    own.push_back(name);
  }
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("cannot list ", directory, ": ", error.message()));
  }
  if (!own.empty() && !marked) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is not empty: it holds ", Quoted(own.front()), "; name a new folder"));
  }
  return own;
}

struct Shard {
  std::string file_name;
  std::vector<const TensorInfo*> tensors;
  std::uint64_t bytes = 0;
};

absl::StatusOr<std::vector<Shard>> PlanShards(const TensorSource& source, std::uint64_t shard_bytes) {
  std::vector<Shard> shards;
  for (const std::string& name : source.Names()) {
    const TensorInfo* info = source.Find(name);
    if (!info->readable) {
      return absl::UnimplementedError(absl::StrCat(info->file, ": tensor ", Quoted(name), ": dtype is ",
                                                   info->stored_dtype, "; BF16, F16 and F32 can be written"));
    }
    if (shards.empty() || (shards.back().bytes != 0 && shards.back().bytes + info->bytes > shard_bytes)) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(info);
    shards.back().bytes += info->bytes;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file_name = shards.size() == 1
                              ? kSingleFile
                              : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

// The 8 bytes of length and the JSON, padded with spaces so that the data starts at a multiple of 8.
std::string MakeHeader(const Shard& shard) {
  Json header;
  header["__metadata__"] = {{"format", "pt"}, {kMarkKey, kMarkValue}};
  std::uint64_t offset = 0;
  for (const TensorInfo* info : shard.tensors) {
    header[info->name] = {{"dtype", std::string(tensor::DTypeName(info->dtype))},
                          {"shape", info->shape},
                          {"data_offsets", {offset, offset + info->bytes}}};
    offset += info->bytes;
  }
  std::string text = header.dump();
  text.resize(base::AlignUp(text.size(), 8), ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  }
  return length + text;
}

std::string MakeIndex(const std::vector<Shard>& shards, std::uint64_t total) {
  Json index;
  index["metadata"] = {{"total_size", total}};
  for (const Shard& shard : shards) {
    for (const TensorInfo* info : shard.tensors) {
      index["weight_map"][info->name] = shard.file_name;
    }
  }
  return index.dump(2) + "\n";
}

// One file under its temporary name: created, appended to, flushed to the disk. Removed unless kept.
class PartialFile {
 public:
  static absl::StatusOr<std::unique_ptr<PartialFile>> Create(const std::string& final_path) {
    std::string path = absl::StrCat(final_path, kPartialSuffix);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
    }
    return std::unique_ptr<PartialFile>(new PartialFile(fd, std::move(path), final_path));
  }
  ~PartialFile() {
    Close();
    if (!renamed_) {
      ::unlink(path_.c_str());
    }
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  absl::Status Append(const void* data, std::size_t size) {
    const auto* next = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t put = ::write(fd_, next, std::min<std::size_t>(size, std::size_t{1} << 30));
      if (put < 0 && errno == EINTR) {
        continue;
      }
      if (put <= 0) {
        return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
      }
      next += put;
      size -= static_cast<std::size_t>(put);
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (::fsync(fd_) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot flush ", path_));
    }
    Close();
    return absl::OkStatus();
  }
  absl::Status Rename() {
    if (std::rename(path_.c_str(), final_path_.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename ", path_, " to ", final_path_));
    }
    renamed_ = true;
    return absl::OkStatus();
  }
  void RemoveRenamed() {
    if (renamed_) {
      ::unlink(final_path_.c_str());
    }
  }

 private:
  PartialFile(int fd, std::string path, std::string final_path)
      : fd_(fd), path_(std::move(path)), final_path_(std::move(final_path)) {}
  void Close() {
    if (fd_ >= 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }

  int fd_;
  const std::string path_;
  const std::string final_path_;
  bool renamed_ = false;
};

using Progress = absl::FunctionRef<void(std::uint64_t done, std::uint64_t total)>;

// All files of one call, in the order in which they get their names.
class Writer {
 public:
  Writer(const TensorSource& source, std::string directory, std::uint64_t total, Progress progress)
      : source_(source), directory_(std::move(directory)), total_(total), progress_(progress) {}

  absl::Status WriteShard(const Shard& shard) {
    COMOE_ASSIGN_OR_RETURN(PartialFile * file, Create(shard.file_name));
    const std::string header = MakeHeader(shard);
    COMOE_RETURN_IF_ERROR(file->Append(header.data(), header.size()));
    for (const TensorInfo* info : shard.tensors) {
      COMOE_ASSIGN_OR_RETURN(const TensorData data, source_.Read(*info));
      if (data.bytes.size() != info->bytes) {
        return absl::InternalError(absl::StrCat("tensor ", Quoted(info->name), ": read ", data.bytes.size(),
                                                " of ", info->bytes, " bytes"));
      }
      COMOE_RETURN_IF_ERROR(file->Append(data.bytes.data(), data.bytes.size()));
      source_.Release(*info);
      done_ += info->bytes;
      progress_(done_, total_);
    }
    return file->Finish();
  }

  absl::Status WriteText(const std::string& name, absl::string_view content) {
    COMOE_ASSIGN_OR_RETURN(PartialFile * file, Create(name));
    COMOE_RETURN_IF_ERROR(file->Append(content.data(), content.size()));
    return file->Finish();
  }

  // Gives every file its name, the last written last, after removing what an earlier call left.
  absl::Status Publish(const std::vector<std::string>& old_files) {
    std::error_code ignored;
    fs::remove(directory_ + "/" + kConfig, ignored);  // first: without it the folder is no checkpoint
    for (const std::string& name : old_files) {
      if (std::find(names_.begin(), names_.end(), name) == names_.end() &&
          !absl::EndsWith(name, kPartialSuffix)) {
        fs::remove(directory_ + "/" + name, ignored);
      }
    }
    for (const auto& file : files_) {
      if (absl::Status status = file->Rename(); !status.ok()) {
        for (const auto& renamed : files_) {
          renamed->RemoveRenamed();
        }
        return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<PartialFile*> Create(const std::string& name) {
    COMOE_ASSIGN_OR_RETURN(std::unique_ptr<PartialFile> file, PartialFile::Create(directory_ + "/" + name));
    names_.push_back(name);
    files_.push_back(std::move(file));
    return files_.back().get();
  }

  const TensorSource& source_;
  const std::string directory_;
  const std::uint64_t total_;
  Progress progress_;
  std::uint64_t done_ = 0;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<PartialFile>> files_;
};

absl::Status CheckSpace(const std::string& directory, std::uint64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (!error && space.available < bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(directory, ": the checkpoint needs ",
                                                     base::FormatBytes(bytes), ", ",
                                                     base::FormatBytes(space.available), " are free"));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const TensorSource& source, const std::string& directory, absl::string_view config_json,
                      const WriteOptions& options, Progress progress) {
  std::error_code error;
  if (!options.copy_from.empty() && fs::equivalent(options.copy_from, directory, error)) {
    return absl::InvalidArgumentError(absl::StrCat(directory, " is the source itself; name another folder"));
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::string> old_files, ListOwnFiles(directory));
  COMOE_ASSIGN_OR_RETURN(const std::vector<Shard> shards, PlanShards(source, options.shard_bytes));
  std::uint64_t total = 0;
  for (const Shard& shard : shards) {
    total += shard.bytes;
  }
  COMOE_RETURN_IF_ERROR(CheckSpace(directory, total));
  Writer writer(source, directory, total, progress);
  for (const Shard& shard : shards) {
    COMOE_RETURN_IF_ERROR(writer.WriteShard(shard));
  }
  if (shards.size() > 1) {
    COMOE_RETURN_IF_ERROR(writer.WriteText(kIndexFile, MakeIndex(shards, total)));
  }
  for (const char* name : kCopied) {
    const std::string from = absl::StrCat(options.copy_from, "/", name);
    if (options.copy_from.empty() || !fs::exists(from, error)) {
      continue;
    }
    COMOE_ASSIGN_OR_RETURN(const std::string content, base::ReadFile(from, kMaxCopiedBytes));
    COMOE_RETURN_IF_ERROR(writer.WriteText(name, content));
  }
  COMOE_RETURN_IF_ERROR(writer.WriteText(kConfig, config_json));
  return writer.Publish(old_files);
}

}  // namespace

absl::Status WriteCheckpoint(const TensorSource& source, const std::string& directory,
                             absl::string_view config_json, const WriteOptions& options, Progress progress) {
  std::error_code error;
  const bool created = fs::create_directories(directory, error);
  if (error || !fs::is_directory(directory, error)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot create the folder ", directory, ": ",
                                                   error ? error.message() : "a file is in the way"));
  }
  const absl::Status status = WriteAll(source, directory, config_json, options, progress);
  if (!status.ok() && created) {
    fs::remove(directory, error);  // removes it only when empty
  }
  return status;
}

}  // namespace comoe::checkpoint
