#include "cli/engine_options.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/checkpoint_folder.h"
#include "cli/progress.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/experts/resident_cache.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/workspace.h"
#include "engine/runtime/moe_engine.h"
#include "scheduler/routing/resident_director.h"
#include "scheduler/routing/trace_recorder.h"

namespace comoe::cli {
namespace {

// Left to the system, the page cache and buffers of clients.
constexpr double kUsableShare = 0.95;

std::uint64_t UsableBytes(const base::HostMemory& host) {
  return static_cast<std::uint64_t>(static_cast<double>(host.available_bytes) * kUsableShare);
}

class Bundle final : public EngineBundle {
 public:
  api::Engine& engine() override { return *engine_; }
  const tokenizer::Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  absl::string_view device_description() const override { return description_; }
  double load_seconds() const override { return load_seconds_; }

  // In the order of their dependence: destroyed last to first.
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<api::ExpertDirector> director_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<api::Engine> engine_;
  std::string description_;
  double load_seconds_ = 0.0;
};

// KV memory and weights must fit together, before anything is loaded.
absl::StatusOr<std::uint64_t> CheckMemory(const EngineOptions& options, const CheckpointFolder& folder) {
  const base::HostMemory host = base::ReadHostMemory();
  COMOE_ASSIGN_OR_RETURN(const checkpoint::MemoryPlan plan,
                         PlanMemory(options, folder.config, folder.tensors.expert_dtype));
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, KvBytes(options, folder.config, plan, host));
  const std::uint64_t usable = UsableBytes(host);
  if (plan.total_bytes > usable || kv_bytes > usable - plan.total_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("'", options.model, "' does not fit: weights take ", base::FormatBytes(plan.total_bytes),
                     " and KV ", base::FormatBytes(kv_bytes), ", but only ", base::FormatBytes(usable),
                     " of ", base::FormatBytes(host.limit_bytes), " are free here (", host.source,
                     "): free memory, lower --kv-bytes, or serve a smaller model"));
  }
  return kv_bytes;
}

absl::Status LoadParts(const EngineOptions& options, const CheckpointFolder& folder, std::uint64_t kv_bytes,
                       Bundle& bundle) {
  const checkpoint::WeightNames names(folder.config);
  const tensor::DType dtype = folder.tensors.expert_dtype;
  runtime::EngineParts parts;
  parts.info = runtime::DescribeModel(folder.config, folder.generation, dtype, folder.name);
  parts.config = folder.config;
  COMOE_ASSIGN_OR_RETURN(parts.weights,
                         model::LoadWeights(*folder.source, folder.config, names, *bundle.device_));
  {
    Progress progress(absl::StrCat("loading experts of ", folder.name), options.quiet);
    base::ThreadPool pool(base::UsableCores(), "comoe-load");
    COMOE_ASSIGN_OR_RETURN(parts.experts, experts::ResidentExpertCache::Load(
                                              *folder.source, folder.config, names, dtype, *bundle.device_,
                                              pool, [&progress](std::uint64_t done, std::uint64_t total) {
                                                progress.UpdateBytes(done, total);
                                              }));
  }
  parts.kernels = options.kernels == "ref" ? &kernels::RefKernels() : &kernels::CpuKernels();
  parts.device = bundle.device_.get();
  bundle.director_ = routing::MakeResidentDirector(parts.info);
  if (options.routing_observer) {
    bundle.director_ = routing::MakeTraceRecorder(
        std::move(bundle.director_),
        [observer = options.routing_observer](const api::RoutingObservation& seen,
                                              absl::Span<const routing::TraceRow>) { observer(seen); });
  }
  parts.director = bundle.director_.get();
  parts.max_rows = options.max_batch_tokens;
  parts.max_sequences = options.max_sequences;
  parts.kv_bytes = kv_bytes;
  COMOE_ASSIGN_OR_RETURN(parts.kv_dtype, KvDType(options));
  bundle.description_ = absl::StrCat(bundle.device_->Describe(), ", kernels ", parts.kernels->name,
                                     ", policy resident, KV ", tensor::DTypeName(parts.kv_dtype));
  COMOE_ASSIGN_OR_RETURN(bundle.engine_, runtime::MakeEngine(std::move(parts)));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEngineOptions(const EngineOptions& options) {
  if (options.model.empty()) {
    return absl::InvalidArgumentError("which model? Give --model DIR, a checkpoint folder");
  }
  if (options.device != "cpu") {
    return absl::UnimplementedError(
        absl::StrCat("--device ", options.device, " is not built into this version; supported: cpu"));
  }
  if (options.policy != "resident") {
    return absl::UnimplementedError(absl::StrCat("--policy ", options.policy,
                                                 " needs a device apart from the host; on the cpu device "
                                                 "every expert is computed where it lies: use resident"));
  }
  if (!options.expert_cache_bytes.empty() || options.expert_cache_fraction >= 0.0 ||
      !options.pinned_bytes.empty() || !options.host_lane.empty()) {
    return absl::UnimplementedError(
        "--expert-cache-bytes, --expert-cache-fraction, --pinned-bytes and --host-lane need a device apart "
        "from the "
        "host; the cpu device has no tiers: leave them out");
  }
  if (options.max_batch_tokens < 1 || options.max_batch_tokens > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-batch-tokens is ", options.max_batch_tokens, ": it lies in [1, 65536]"));
  }
  if (options.max_sequences < 1 || options.max_sequences > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-sequences is ", options.max_sequences, ": it lies in [1, 4096]"));
  }
  if (options.threads < 0 || options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads is ", options.threads, ": it lies in [0, 1024], 0 for all"));
  }
  return absl::OkStatus();
}

void AddEngineFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--model", options.model, "checkpoint folder (config.json, *.safetensors, tokenizer.json)");
  app.add_option("--device", options.device, "cpu")->capture_default_str();
  app.add_option("--policy", options.policy, "how experts are placed and moved: resident")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "compute threads, 0 for all that affinity and cgroup allow")
      ->capture_default_str();
  app.add_option("--kernels", options.kernels, "best for this processor, or the reference loops")
      ->check(CLI::IsMember({"best", "ref"}))
      ->capture_default_str();
  AddKvFlags(app, options);
  app.add_option("--expert-cache-fraction", options.expert_cache_fraction,
                 "share of the experts in device slots (needs a device apart from the host)");
  app.add_option("--expert-cache-bytes", options.expert_cache_bytes,
                 "the same in bytes (needs a device apart from the host)");
  app.add_option("--pinned-bytes", options.pinned_bytes,
                 "page-locked host memory for experts (needs a device apart from the host)");
  app.add_option("--host-lane", options.host_lane,
                 "on | off: may the CPU compute missed experts (needs a device apart from the host)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--widen", options.widen,
                 "HIDDEN,INTERMEDIATE: embed the model in a larger one while loading");
  app.add_option("--max-batch-tokens", options.max_batch_tokens,
                 "rows of a step: prompts are cut into chunks of this")
      ->capture_default_str();
  app.add_option("--max-sequences", options.max_sequences, "sequences whose state is kept at once")
      ->capture_default_str();
  app.add_flag("--quiet", options.quiet, "no progress on stderr");
}

void AddKvFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--kv-bytes", options.kv_bytes,
                 "memory for keys and values, like 2GiB (default: a whole context for each sequence)");
  app.add_option("--kv-dtype", options.kv_dtype,
                 "how keys and values are stored: f32, or f16 in half the memory and not exact")
      ->check(CLI::IsMember({"f32", "f16"}))
      ->capture_default_str();
}

absl::StatusOr<tensor::DType> KvDType(const EngineOptions& options) {
  if (options.kv_dtype == "f32") {
    return tensor::DType::kF32;
  }
  if (options.kv_dtype == "f16") {
    return tensor::DType::kF16;
  }
  return absl::InvalidArgumentError(absl::StrCat("--kv-dtype is ", options.kv_dtype, ": it is f32 or f16"));
}

absl::StatusOr<checkpoint::MemoryPlan> PlanMemory(const EngineOptions& options,
                                                  const checkpoint::ModelConfig& config,
                                                  tensor::DType dtype) {
  COMOE_ASSIGN_OR_RETURN(const tensor::DType kv_dtype, KvDType(options));
  return checkpoint::PlanMemory(config, dtype, kv_dtype);
}

absl::StatusOr<std::uint64_t> KvBytes(const EngineOptions& options, const checkpoint::ModelConfig& config,
                                      const checkpoint::MemoryPlan& plan, const base::HostMemory& host) {
  if (!options.kv_bytes.empty()) {
    return base::ParseBytes(options.kv_bytes);
  }
  const std::uint64_t whole =
      base::AlignUp(static_cast<std::uint64_t>(config.context_length), tensor::kKvBlockTokens) *
      plan.kv_bytes_per_token * static_cast<std::uint64_t>(options.max_sequences);
  const std::uint64_t usable = UsableBytes(host);
  return std::min(whole, usable > plan.total_bytes ? (usable - plan.total_bytes) / 2 : 0);
}

absl::StatusOr<std::unique_ptr<EngineBundle>> LoadEngine(const EngineOptions& options) {
  const absl::Time start = absl::Now();
  COMOE_RETURN_IF_ERROR(CheckEngineOptions(options));
  COMOE_ASSIGN_OR_RETURN(CheckpointFolder folder, OpenCheckpoint(options.model, options.widen));
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, CheckMemory(options, folder));
  auto bundle = std::make_unique<Bundle>();
  bundle->device_ = device::MakeCpuDevice(options.threads > 0 ? options.threads : base::UsableCores());
  const std::string tokenizer_path = options.model + "/tokenizer.json";
  if (IsThere(tokenizer_path)) {
    COMOE_ASSIGN_OR_RETURN(bundle->tokenizer_, tokenizer::Tokenizer::Load(tokenizer_path));
    if (bundle->tokenizer_->vocab_size() > folder.config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          tokenizer_path, " has token ids up to ", bundle->tokenizer_->vocab_size() - 1,
          ", but config.json's vocab_size is ", folder.config.vocab_size, ": they are not of one model"));
    }
  }
  COMOE_RETURN_IF_ERROR(LoadParts(options, folder, kv_bytes, *bundle));
  bundle->load_seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
  return bundle;
}

}  // namespace comoe::cli
