// The Engine: a loaded model that runs steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "engine/api/expert_director.h"
#include "engine/base/metrics_sink.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/kv_pool.h"
#include "engine/model/weights.h"
#include "engine/tensor/dtype.h"

namespace comoe::runtime {

struct EngineParts {
  api::ModelInfo info;
  checkpoint::ModelConfig config;
  model::ModelWeights weights;
  std::unique_ptr<experts::ExpertCache> experts;
  const kernels::KernelTable* kernels = nullptr;
  device::Device* device = nullptr;         // outlives the engine
  api::ExpertDirector* director = nullptr;  // outlives the engine
  std::int64_t max_rows = 512;
  std::int64_t max_sequences = 1;
  std::uint64_t kv_bytes = 0;
  tensor::DType kv_dtype = tensor::DType::kF32;  // or kF16
  // Stretches of a step without a decision are captured and replayed, where the device can.
  bool capture_steps = false;
  // Whether the host may compute missing experts: with what kernels (on host streams of the device). nullptr:
  // it may not.
  const kernels::KernelTable* host_lane_kernels = nullptr;
  // A copy of an expert that takes longer counts as one that never ends.
  absl::Duration copy_limit = absl::Seconds(10);
  base::MetricsSink* metrics = nullptr;  // outlives the engine; nullptr: nobody listens
};

// Allocates KV and workspace; after that no step allocates device memory, but for scratch of CUDA kernels
// when a step is the first to need so much. RESOURCE_EXHAUSTED says what did not fit.
absl::StatusOr<std::unique_ptr<api::Engine>> MakeEngine(EngineParts parts);

// What the model's facts are, for clients and people; the cache groups are added by MakeEngine.
api::ModelInfo DescribeModel(const checkpoint::ModelConfig& config,
                             const checkpoint::GenerationDefaults& defaults, tensor::DType dtype,
                             const std::string& name);

}  // namespace comoe::runtime
