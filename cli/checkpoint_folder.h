// A checkpoint folder as the subcommands open it: config, tensors (widened when asked), generation defaults.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/weight_names.h"

namespace comoe::cli {

struct CheckpointFolder {
  std::string name;         // the folder's own name: what clients call the model
  std::string config_json;  // as read, before widening
  checkpoint::ModelConfig config;
  checkpoint::GenerationDefaults generation;
  std::unique_ptr<checkpoint::TensorSource> source;
  checkpoint::TensorReport tensors;
};

// Whether a folder has an entry of that name. A link that leads nowhere counts: opening it fails and says so,
// while a file that only seems absent would be passed over in silence.
bool IsThere(const std::string& path);

// Parses and checks everything but loads no weights. `widen` is "" or "H,I".
absl::StatusOr<CheckpointFolder> OpenCheckpoint(const std::string& directory, const std::string& widen);

}  // namespace comoe::cli
