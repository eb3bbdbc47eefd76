#include "cli/checkpoint_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/api/sampling_params.h"
#include "engine/base/log.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/widen.h"

namespace comoe::cli {
namespace {

constexpr std::uint64_t kConfigLimitBytes = std::uint64_t{16} << 20;

absl::Status ApplyWiden(const std::string& widen, CheckpointFolder& folder) {
  const std::vector<std::string> parts = absl::StrSplit(widen, ',');
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &hidden) ||
      !absl::SimpleAtoi(parts[1], &intermediate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--widen is '", widen, "': write HIDDEN,INTERMEDIATE, like 1024,768"));
  }
  COMOE_ASSIGN_OR_RETURN(checkpoint::ModelConfig wide,
                         checkpoint::WidenConfig(folder.config, hidden, intermediate));
  COMOE_ASSIGN_OR_RETURN(folder.source,
                         checkpoint::MakeWidenedSource(std::move(folder.source), folder.config, wide));
  folder.config = std::move(wide);
  return absl::OkStatus();
}

// Defaults that no request could use are the file's fault, not the client's.
absl::Status CheckGeneration(const CheckpointFolder& folder) {
  const checkpoint::GenerationDefaults& defaults = folder.generation;
  for (const std::int32_t id : defaults.eos_token_ids) {
    if (id < 0 || id >= folder.config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("eos_token_id is ", id, ", not in the vocabulary of ", folder.config.vocab_size));
    }
  }
  api::SamplingParams sampling;
  if (defaults.do_sample) {
    sampling.temperature = static_cast<float>(defaults.temperature);
    sampling.top_p = static_cast<float>(defaults.top_p);
    sampling.top_k = defaults.top_k;
  }
  return api::ValidateSamplingParams(sampling, static_cast<std::int32_t>(folder.config.vocab_size));
}

}  // namespace

bool IsThere(const std::string& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
}

absl::StatusOr<CheckpointFolder> OpenCheckpoint(const std::string& directory, const std::string& widen) {
  if (directory.empty()) {
    return absl::InvalidArgumentError("which model? Give --model DIR, a checkpoint folder");
  }
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(directory, error).lexically_normal();
  if (!std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(
        absl::StrCat("there is no checkpoint folder '", directory,
                     "': --model wants a folder with config.json and safetensors files"));
  }
  const std::string config_path = directory + "/config.json";
  if (!IsThere(config_path)) {
    return absl::NotFoundError(
        absl::StrCat("'", directory,
                     "' has no config.json: --model wants a checkpoint folder, with config.json and "
                     "safetensors files"));
  }
  CheckpointFolder folder;
  folder.name = path.filename().empty() ? path.parent_path().filename() : path.filename();
  COMOE_ASSIGN_OR_RETURN(folder.config_json, base::ReadFile(config_path, kConfigLimitBytes));
  COMOE_ASSIGN_OR_RETURN(folder.config, checkpoint::ParseModelConfig(folder.config_json, config_path));
  const std::string generation_path = directory + "/generation_config.json";
  if (IsThere(generation_path)) {
    COMOE_ASSIGN_OR_RETURN(const std::string json, base::ReadFile(generation_path, kConfigLimitBytes));
    COMOE_ASSIGN_OR_RETURN(folder.generation, checkpoint::ParseGenerationDefaults(json, generation_path));
    COMOE_RETURN_IF_ERROR(base::Annotate(CheckGeneration(folder), generation_path));
  }
  COMOE_ASSIGN_OR_RETURN(folder.source, checkpoint::OpenSafetensors(directory));
  COMOE_ASSIGN_OR_RETURN(folder.tensors, checkpoint::CheckTensors(folder.config, *folder.source));
  if (!folder.tensors.unexpected.empty()) {
    base::Logf(base::LogLevel::kWarning, "checkpoint",
               "%s has %d tensors that a %s model does not use, %s for one", directory,
               folder.tensors.unexpected.size(), folder.config.model_type, folder.tensors.unexpected.front());
  }
  if (!widen.empty()) {
    COMOE_RETURN_IF_ERROR(ApplyWiden(widen, folder));
  }
  return folder;
}

}  // namespace comoe::cli
