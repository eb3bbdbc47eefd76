#include "tests/engine/checkpoint/test_util.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/mapped_file.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"

namespace comoe::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

std::string SourceDir() { return Environment("COMOE_SOURCE_DIR", "."); }

}  // namespace

std::string FixtureDir(const std::string& name) {
  return SourceDir() + "/tests/fixtures/checkpoints/" + name;
}

std::string TrainedModelDir(const std::string& name) {
  const std::string shared = Environment("COMOE_SHARED", SourceDir() + "/../shared");
  for (const std::string& directory : {SourceDir() + "/models/" + name, shared + "/models/" + name}) {
    if (fs::exists(directory + "/config.json")) {
      return directory;
    }
  }
  std::cout << "NOTE: the trained model " << name
            << " is not at hand (models/ or COMOE_SHARED); not tested\n";
  return "";
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteText(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
}

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "comoe_checkpoint_XXXXXX").string();
  path_ = ::mkdtemp(pattern.data());
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::permissions(path_, fs::perms::owner_all, ignored);
  fs::remove_all(path_, ignored);
}

std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  }
  return bytes + header + data;
}

RandomSource::RandomSource(const ModelConfig& config, tensor::DType dtype, std::uint64_t seed) {
  VisitExpectedTensors(config, [&](const ExpectedTensor& expected) {
    TensorInfo info;
    info.name = expected.name;
    info.dtype = dtype;
    info.stored_dtype = std::string(tensor::DTypeName(dtype));
    info.shape = expected.shape;
    std::uint64_t elements = 1;
    for (const std::int64_t dimension : expected.shape) {
      elements *= static_cast<std::uint64_t>(dimension);
    }
    info.bytes = elements * tensor::DTypeBytes(dtype);
    info.file = "memory/model.safetensors";
    std::vector<std::byte>& bytes = bytes_[info.name];
    bytes.resize(info.bytes);
    for (std::size_t i = 0; i < elements; ++i) {
      const auto value = static_cast<float>(base::RandomUnit(seed, i) - 0.5);
      if (dtype == tensor::DType::kF32) {
        std::memcpy(bytes.data() + i * 4, &value, 4);
      } else {
        const std::uint16_t bits =
            dtype == tensor::DType::kBf16 ? tensor::FloatToBf16(value) : tensor::FloatToF16(value);
        std::memcpy(bytes.data() + i * 2, &bits, 2);
      }
    }
    ++seed;
    infos_.emplace(info.name, info);
    return true;
  });
}

std::vector<std::string> RandomSource::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, info] : infos_) {
    names.push_back(name);
  }
  return names;
}

const TensorInfo* RandomSource::Find(absl::string_view name) const {
  const auto found = infos_.find(std::string(name));
  return found == infos_.end() ? nullptr : &found->second;
}

absl::StatusOr<TensorData> RandomSource::Read(const TensorInfo& info) const {
  TensorData data;
  data.bytes = bytes_.at(info.name);
  return data;
}

float RandomSource::At(const std::string& name, std::size_t i) const {
  return tensor::LoadElement(bytes_.at(name).data(), infos_.at(name).dtype, i);
}

absl::StatusOr<OpenedCheckpoint> OpenCheckpoint(const std::string& directory) {
  const std::string path = directory + "/config.json";
  COMOE_ASSIGN_OR_RETURN(const std::string json, base::ReadFile(path, std::uint64_t{16} << 20));
  OpenedCheckpoint opened;
  COMOE_ASSIGN_OR_RETURN(opened.config, ParseModelConfig(json, path));
  COMOE_ASSIGN_OR_RETURN(opened.source, OpenSafetensors(directory));
  COMOE_ASSIGN_OR_RETURN(opened.report, CheckTensors(opened.config, *opened.source));
  return opened;
}

}  // namespace comoe::checkpoint
