// What a model takes of the host's memory and of the device's, and whether that is there: reckoned from flags
// and config, before anything is loaded.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "cli/checkpoint_folder.h"
#include "cli/engine_options.h"
#include "engine/base/host.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/tensor/dtype.h"

namespace comoe::cli {

absl::StatusOr<tensor::DType> KvDType(const EngineOptions& options);

// What `config` takes with weights of `dtype` and the options' KV.
absl::StatusOr<checkpoint::MemoryPlan> PlanMemory(const EngineOptions& options,
                                                  const checkpoint::ModelConfig& config, tensor::DType dtype);

// What of a memory may be planned for: the rest is the system's.
std::uint64_t UsableBytes(const base::HostMemory& host);

// The device's memory, as ReadHostMemory tells of the host's.
base::HostMemory ReadDeviceMemory(const device::Device& device);

// Host memory for weights: all of them once, and on an emulated device its slots and staging too. With a
// packed file experts take what is page-locked.
absl::StatusOr<std::uint64_t> HostBytes(const EngineOptions& options, const checkpoint::MemoryPlan& plan);

// What weights and experts take on a card.
absl::StatusOr<std::uint64_t> DeviceBytes(const EngineOptions& options, const checkpoint::MemoryPlan& plan);

// --kv-bytes, or by default one whole context for each sequence, but at most half of what the weights leave.
absl::StatusOr<std::uint64_t> KvBytes(const EngineOptions& options, const checkpoint::ModelConfig& config,
                                      const checkpoint::MemoryPlan& plan, const base::HostMemory& host);

// KvBytes, where they and the weights fit together; RESOURCE_EXHAUSTED says what does not, and the remedy.
absl::StatusOr<std::uint64_t> CheckMemory(const EngineOptions& options, const CheckpointFolder& folder,
                                          const device::Device& device);

// Whether a card has room for every expert, where no flag says how many it is to have.
bool AllFit(const EngineOptions& options, const CheckpointFolder& folder, const device::Device& device);

}  // namespace comoe::cli
