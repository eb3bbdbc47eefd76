// Helpers of the checkpoint tests: where fixtures lie, temporary folders, checkpoints made in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/weight_names.h"

namespace comoe::checkpoint {

// tests/fixtures/checkpoints/<name>
std::string FixtureDir(const std::string& name);
// A trained model's folder: from models/ of the repository or from the folder COMOE_SHARED names (../shared
// without it); empty, with a note on stdout, when it is in neither.
std::string TrainedModelDir(const std::string& name);

std::string ReadText(const std::string& path);
void WriteText(const std::string& path, const std::string& content);

// Removed with everything in it at the end of its scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// 8 bytes little-endian length, `header`, `data`.
std::string SafetensorsBytes(const std::string& header, const std::string& data);

// A checkpoint whose tensors are numbers drawn from a seed, for any config.
class RandomSource : public TensorSource {
 public:
  RandomSource(const ModelConfig& config, tensor::DType dtype, std::uint64_t seed);
  std::vector<std::string> Names() const override;
  const TensorInfo* Find(absl::string_view name) const override;
  absl::StatusOr<TensorData> Read(const TensorInfo& info) const override;
  void Release(const TensorInfo&) const override {}
  // Element i of a tensor as float.
  float At(const std::string& name, std::size_t i) const;

  std::map<std::string, TensorInfo>& infos() { return infos_; }

 private:
  std::map<std::string, TensorInfo> infos_;
  std::map<std::string, std::vector<std::byte>> bytes_;
};

struct OpenedCheckpoint {
  ModelConfig config;
  std::unique_ptr<TensorSource> source;
  TensorReport report;
};
// What loading does before anything is packed: config.json, headers, names and shapes.
absl::StatusOr<OpenedCheckpoint> OpenCheckpoint(const std::string& directory);

}  // namespace comoe::checkpoint
