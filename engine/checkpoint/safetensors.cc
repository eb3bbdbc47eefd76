#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/json_fields.h"
#include "engine/checkpoint/messages.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/tensor_source.h"

namespace comoe::checkpoint {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::uint64_t kMaxIndexBytes = 100'000'000;

struct Slot {
  TensorInfo info;
  std::size_t file = 0;
  std::uint64_t offset = 0;  // from the start of the file
};

// Windows into mapped files. Immutable after it was opened, so thread-safe.
class SafetensorsSource : public TensorSource {
 public:
  SafetensorsSource(std::vector<std::unique_ptr<base::MappedFile>> files,
                    absl::flat_hash_map<std::string, Slot> slots)
      : files_(std::move(files)), slots_(std::move(slots)) {}

  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    names.reserve(slots_.size());
    for (const auto& [name, slot] : slots_) {
      names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const TensorInfo* Find(absl::string_view name) const override {
    const auto found = slots_.find(name);
    return found == slots_.end() ? nullptr : &found->second.info;
  }

  absl::StatusOr<TensorData> Read(const TensorInfo& info) const override {
    const auto found = slots_.find(info.name);
    if (found == slots_.end()) {
      return absl::NotFoundError(absl::StrCat("no tensor ", Quoted(info.name)));
    }
    const Slot& slot = found->second;
    if (!slot.info.readable) {
      return absl::UnimplementedError(absl::StrCat(slot.info.file, ": tensor ", Quoted(info.name),
                                                   ": dtype is ", slot.info.stored_dtype,
                                                   "; supported are BF16, F16 and F32"));
    }
    TensorData data;
    data.bytes = files_[slot.file]->bytes().subspan(slot.offset, slot.info.bytes);
    return data;
  }

  void Release(const TensorInfo& info) const override {
    const auto found = slots_.find(info.name);
    if (found != slots_.end()) {
      files_[found->second.file]->DropPages(found->second.offset, found->second.info.bytes);
    }
  }

 private:
  const std::vector<std::unique_ptr<base::MappedFile>> files_;
  const absl::flat_hash_map<std::string, Slot> slots_;
};

// False for a dtype the engine cannot read.
bool ParseDType(absl::string_view name, tensor::DType* dtype) {
  for (const tensor::DType candidate : {tensor::DType::kF32, tensor::DType::kBf16, tensor::DType::kF16}) {
    if (name == tensor::DTypeName(candidate)) {
      *dtype = candidate;
      return true;
    }
  }
  return false;
}

// Collects the tensors of one file after another.
class Builder {
 public:
  // `shard_of` is the index's word on which file holds a tensor; null for a single file.
  absl::Status AddFile(const std::string& path, const std::string& file_name,
                       const absl::btree_map<std::string, std::string>* shard_of) {
    COMOE_ASSIGN_OR_RETURN(std::unique_ptr<base::MappedFile> mapped, base::MappedFile::Open(path));
    COMOE_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(mapped->bytes(), path));
    for (HeaderEntry& entry : header.entries) {
      if (shard_of != nullptr) {
        const auto placed = shard_of->find(entry.name);
        if (placed == shard_of->end() || placed->second != file_name) {
          return absl::InvalidArgumentError(absl::StrCat(
              path, ": tensor ", Quoted(entry.name), ": ", kIndexFile,
              placed == shard_of->end() ? " does not list it"
                                        : absl::StrCat(" places it in ", Quoted(placed->second))));
        }
      }
      Slot slot;
      slot.info.readable = ParseDType(entry.dtype, &slot.info.dtype);
      slot.info.stored_dtype = std::move(entry.dtype);
      slot.info.shape = std::move(entry.shape);
      slot.info.bytes = entry.end - entry.begin;
      slot.info.name = entry.name;
      slot.info.file = path;
      slot.file = files_.size();
      slot.offset = header.data_offset + entry.begin;
      slots_.emplace(std::move(entry.name),
                     std::move(slot));  // names are unique: within a file and by the index
    }
    files_.push_back(std::move(mapped));
    return absl::OkStatus();
  }

  bool Has(const std::string& name) const { return slots_.contains(name); }

  std::unique_ptr<TensorSource> Build() {
    return std::make_unique<SafetensorsSource>(std::move(files_), std::move(slots_));
  }

 private:
  std::vector<std::unique_ptr<base::MappedFile>> files_;
  absl::flat_hash_map<std::string, Slot> slots_;
};

// A plain name of a file beside the index, so that an index cannot reach out of its folder.
bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' && !absl::StrContains(name, "/") &&
         !absl::StrContains(name, absl::string_view("\0", 1)) && absl::EndsWith(name, ".safetensors");
}

absl::StatusOr<absl::btree_map<std::string, std::string>> ParseIndex(absl::string_view json,
                                                                     const std::string& path) {
  COMOE_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJsonObject(json, path));
  const JsonFields fields(&document, path);
  const nlohmann::json* map = fields.Find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return fields.Invalid("weight_map", "is missing or not an object");
  }
  absl::btree_map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string place = absl::StrCat("weight_map.", Quoted(tensor));
    if (!shard.is_string()) {
      return fields.Invalid(place, absl::StrCat("is ", ShowJson(shard), "; a file name is needed"));
    }
    std::string name = shard.get<std::string>();
    if (!IsPlainFileName(name)) {
      return fields.Invalid(place, absl::StrCat("is ", Quoted(name),
                                                ", which is not the plain name of a .safetensors "
                                                "file in the folder"));
    }
    shard_of.emplace(tensor, std::move(name));
  }
  if (shard_of.empty()) {
    return fields.Invalid("weight_map", "is empty");
  }
  return shard_of;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenShards(const std::string& directory) {
  const std::string index_path = absl::StrCat(directory, "/", kIndexFile);
  COMOE_ASSIGN_OR_RETURN(const std::string json, base::ReadFile(index_path, kMaxIndexBytes));
  using Index = absl::btree_map<std::string, std::string>;
  COMOE_ASSIGN_OR_RETURN(const Index shard_of, ParseIndex(json, index_path));
  absl::btree_map<std::string, std::string> first_tensor;  // of each shard, for messages
  for (const auto& [tensor, shard] : shard_of) {
    first_tensor.emplace(shard, tensor);
  }
  Builder builder;
  for (const auto& [shard, tensor] : first_tensor) {
    COMOE_RETURN_IF_ERROR(base::Annotate(
        builder.AddFile(absl::StrCat(directory, "/", shard), shard, &shard_of),
        absl::StrCat("shard ", Quoted(shard), " of ", kIndexFile, " (it holds ", Quoted(tensor), ")")));
  }
  for (const auto& [tensor, shard] : shard_of) {
    if (!builder.Has(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map.", Quoted(tensor), " names ",
                                                     Quoted(shard), ", which holds no such tensor"));
    }
  }
  return builder.Build();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensorsFile(const std::string& path) {
  Builder builder;
  COMOE_RETURN_IF_ERROR(builder.AddFile(path, path, nullptr));
  return builder.Build();
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensors(const std::string& directory) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(directory, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat(directory, ": ", error ? error.message() : "no such folder"));
  }
  if (!std::filesystem::is_directory(status)) {
    return absl::InvalidArgumentError(absl::StrCat(directory,
                                                   " is not a folder; a checkpoint is a folder with "
                                                   "config.json and ",
                                                   kSingleFile));
  }
  const std::string single = absl::StrCat(directory, "/", kSingleFile);
  if (std::filesystem::exists(std::filesystem::status(single, error))) {
    return OpenSafetensorsFile(single);
  }
  if (std::filesystem::exists(std::filesystem::status(absl::StrCat(directory, "/", kIndexFile), error))) {
    return OpenShards(directory);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::PermissionDeniedError(absl::StrCat(directory, ": ", error.message()));
  }
  return absl::NotFoundError(absl::StrCat(directory, " holds neither ", kSingleFile, " nor ", kIndexFile));
}

}  // namespace comoe::checkpoint
