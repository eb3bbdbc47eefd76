#include "cli/engine_options.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/checkpoint_folder.h"
#include "cli/cuda_options.h"
#include "cli/engine_keep.h"
#include "cli/given_flags.h"
#include "cli/offload_options.h"
#include "cli/output_path.h"
#include "cli/progress.h"
#include "cli/timeline.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/experts/resident_cache.h"
#include "engine/experts/tiered_cache.h"
#include "engine/kernels/emulated/emulated_kernels.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/workspace.h"
#include "engine/runtime/lane_rates.h"
#include "engine/runtime/moe_engine.h"
#include "scheduler/routing/hub_reporter.h"
#include "scheduler/routing/resident_director.h"
#include "scheduler/routing/trace_recorder.h"

namespace comoe::cli {
namespace {

// Left to the system, the page cache and buffers of clients.
constexpr double kUsableShare = 0.95;

class Bundle final : public EngineBundle {
 public:
  ~Bundle() override {
    engine_ = nullptr;
    if (timeline_ != nullptr) {
      device_->SetTimeline(nullptr);
    }
    if (keep_ != nullptr) {
      keep_->Keep(device_);
    }
  }

  api::Engine& engine() override { return *engine_; }
  const tokenizer::Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  absl::string_view device_description() const override { return description_; }
  double load_seconds() const override { return load_seconds_; }
  const api::StepCosts* step_costs() const override {
    return hub_ == nullptr ? nullptr : &hub_->step_costs();
  }
  absl::Status SaveHubState() const override {
    return hub_ == nullptr || hub_state_.empty() ? absl::OkStatus()
                                                 : WriteHubState(hub_state_, model_hash_, *hub_);
  }
  std::string tiers_description() const override { return tiers_ == nullptr ? "" : tiers_->DescribeTiers(); }

  // In the order of their dependence: destroyed last to first.
  std::shared_ptr<EngineKeep> keep_;  // nullptr: nothing is kept
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<Timeline> timeline_;
  std::unique_ptr<api::ExpertDirector> director_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<api::Engine> engine_;
  const experts::TieredExpertCache* tiers_ = nullptr;  // the engine's
  routing::HubDirector* hub_ = nullptr;                // among the directors
  std::string hub_state_;
  std::uint64_t model_hash_ = 0;
  std::string description_;
  double load_seconds_ = 0.0;
};

// As CheckMemory, where weights and KV lie on a card of their own: they must fit there, and the experts below
// it on the host.
absl::StatusOr<std::uint64_t> CheckDeviceMemory(const EngineOptions& options, const CheckpointFolder& folder,
                                                checkpoint::MemoryPlan plan, const device::Device& device) {
  base::HostMemory host = base::ReadHostMemory();
  host.available_bytes += options.keep == nullptr ? 0 : options.keep->experts().bytes();  // used, or freed
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t on_host, HostBytes(options, plan));
  if (on_host > UsableBytes(host)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "'", options.model, "' does not fit: its experts take ", base::FormatBytes(on_host),
        " of host memory, but only ", base::FormatBytes(UsableBytes(host)), " are free here (", host.source,
        "): free memory, lower --pinned-bytes, or keep experts on disk (--expert-file)"));
  }
  const base::HostMemory card = ReadDeviceMemory(device);
  COMOE_ASSIGN_OR_RETURN(plan.total_bytes, DeviceBytes(options, plan));
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, KvBytes(options, folder.config, plan, card));
  if (plan.total_bytes + kv_bytes > UsableBytes(card)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "'", options.model, "' does not fit on the device: weights and expert slots take ",
        base::FormatBytes(plan.total_bytes), " and KV ", base::FormatBytes(kv_bytes), ", but only ",
        base::FormatBytes(UsableBytes(card)), " of ", base::FormatBytes(card.limit_bytes),
        " are free there: lower --expert-cache-bytes, --expert-cache-fraction or --kv-bytes"));
  }
  return kv_bytes;
}

// Whether a card has room for every expert, where no flag says how many it is to have.
bool AllFit(const EngineOptions& options, const CheckpointFolder& folder, const device::Device& device) {
  constexpr double kShareOfWeights = 0.8;  // KV and workspace take of the rest
  if (!options.expert_cache_bytes.empty() || options.expert_cache_fraction >= 0.0) {
    return false;
  }
  EngineOptions resident = options;
  resident.policy = "resident";
  const absl::StatusOr<checkpoint::MemoryPlan> plan =
      PlanMemory(resident, folder.config, folder.tensors.expert_dtype);
  const absl::StatusOr<std::uint64_t> bytes =
      plan.ok() ? DeviceBytes(resident, *plan) : absl::StatusOr<std::uint64_t>(plan.status());
  return bytes.ok() && static_cast<double>(*bytes) <
                           kShareOfWeights * static_cast<double>(ReadDeviceMemory(device).available_bytes);
}

// KV memory and weights must fit together, before anything is loaded.
absl::StatusOr<std::uint64_t> CheckMemory(const EngineOptions& options, const CheckpointFolder& folder,
                                          const device::Device& device) {
  const base::HostMemory host = base::ReadHostMemory();
  COMOE_ASSIGN_OR_RETURN(const checkpoint::MemoryPlan plan,
                         PlanMemory(options, folder.config, folder.tensors.expert_dtype));
  if (options.device == "cuda") {
    return CheckDeviceMemory(options, folder, plan, device);
  }
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, KvBytes(options, folder.config, plan, host));
  const std::uint64_t usable = UsableBytes(host);
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t weights, HostBytes(options, plan));
  if (weights > usable || kv_bytes > usable - weights) {
    return absl::ResourceExhaustedError(
        absl::StrCat("'", options.model, "' does not fit: weights take ", base::FormatBytes(weights),
                     " and KV ", base::FormatBytes(kv_bytes), ", but only ", base::FormatBytes(usable),
                     " of ", base::FormatBytes(host.limit_bytes), " are free here (", host.source,
                     "): free memory, lower --kv-bytes, or serve a smaller model"));
  }
  return kv_bytes;
}

experts::TieredOptions TieredOptions(const EngineOptions& options, const TierBudget& budget) {
  experts::TieredOptions tiers;
  tiers.device_slots = static_cast<std::int32_t>(budget.device_slots);
  tiers.device_staging_slots = static_cast<std::int32_t>(budget.device_staging_slots);
  tiers.pinned_slots = static_cast<std::int32_t>(budget.pinned_slots);
  tiers.pinned_staging_slots = static_cast<std::int32_t>(budget.pinned_staging_slots);
  tiers.page_lock = options.page_lock == "on";
  tiers.exclusive = options.tiers == "exclusive";
  tiers.packed_path = options.expert_file;
  tiers.verify_packed = true;
  tiers.transfers.copy_limit = options.copy_limit;
  if (options.device == "cuda" && options.keep != nullptr) {
    tiers.keep = {options.keep, &options.keep->experts()};
  }
  return tiers;
}

routing::TierShape ShapeOf(const EngineOptions& options, const checkpoint::ModelConfig& config,
                           const experts::TieredExpertCache& cache) {
  routing::TierShape shape;
  shape.num_layers = static_cast<std::int32_t>(config.num_layers());
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    if (config.layers[static_cast<std::size_t>(layer)].sparse) {
      shape.moe_layers.push_back(layer);
    }
  }
  shape.num_experts = static_cast<std::int32_t>(config.num_experts);
  shape.experts_per_token = static_cast<std::int32_t>(config.experts_per_token);
  shape.device_slots = cache.device_slots();
  shape.pinned_slots = cache.pinned_slots();
  shape.exclusive = options.tiers == "exclusive";
  shape.pinned_holds_all =
      cache.pinned_slots() >= shape.num_moe_experts() - (shape.exclusive ? shape.device_slots : 0);
  return shape;
}

absl::Status LoadResident(const EngineOptions& options, const CheckpointFolder& folder, Bundle& bundle,
                          runtime::EngineParts& parts) {
  Progress progress(absl::StrCat("loading experts of ", folder.name), options.quiet);
  base::ThreadPool pool(base::UsableCores(), "comoe-load");
  COMOE_ASSIGN_OR_RETURN(
      parts.experts,
      experts::ResidentExpertCache::Load(
          *folder.source, folder.config, checkpoint::WeightNames(folder.config), folder.tensors.expert_dtype,
          *bundle.device_, pool,
          [&progress](std::uint64_t done, std::uint64_t total) { progress.UpdateBytes(done, total); }));
  parts.kernels = options.kernels == "ref" ? &kernels::RefKernels() : &kernels::CpuKernels();
  bundle.director_ = routing::MakeResidentDirector(parts.info);
  return absl::OkStatus();
}

absl::Status LoadTiered(const EngineOptions& options, const CheckpointFolder& folder, Bundle& bundle,
                        runtime::EngineParts& parts) {
  const checkpoint::MemoryPlan plan =
      checkpoint::PlanMemory(folder.config, folder.tensors.expert_dtype, parts.kv_dtype);
  COMOE_ASSIGN_OR_RETURN(const TierBudget budget, PlanTiers(options, plan.num_experts, plan.expert_bytes));
  experts::TieredOptions tiers = TieredOptions(options, budget);
  COMOE_ASSIGN_OR_RETURN(const runtime::CopyRates rates,
                         runtime::MeasureCopies(*bundle.device_, plan.expert_bytes));
  if (rates.host_to_device > 0.0 && rates.host_to_host > 0.0) {
    tiers.transfers.initial_link_bytes_per_second = rates.host_to_device;
    tiers.transfers.initial_host_bytes_per_second = rates.host_to_host;
    tiers.transfers.initial_rates_measured = true;
  }
  COMOE_ASSIGN_OR_RETURN(
      std::unique_ptr<experts::TieredExpertCache> cache,
      experts::TieredExpertCache::Create(folder.config, folder.tensors.expert_dtype, tiers, *bundle.device_));
  // As reserved: pinned memory can have been refused.
  const routing::TierShape shape = ShapeOf(options, folder.config, *cache);
  if (options.make_director) {
    bundle.director_ = options.make_director(shape);
  } else {
    COMOE_ASSIGN_OR_RETURN(routing::Policy policy, MakeOffloadPolicy(options, parts.info, shape));
    if (policy.hot_set_is_guess) {
      base::Logf(base::LogLevel::kWarning, "engine",
                 "policy static without a trace keeps the first experts of each layer, which need not be the "
                 "hot ones: "
                 "give --hot-trace FILE");
    }
    bundle.hub_ = policy.hub;
    bundle.director_ = std::move(policy.director);
    if (bundle.hub_ != nullptr && !options.hub_state.empty()) {
      bundle.hub_state_ = options.hub_state;
      COMOE_RETURN_IF_ERROR(CheckOutputPath("--hub-state", options.hub_state));
      COMOE_ASSIGN_OR_RETURN(bundle.model_hash_, experts::ModelHash(*folder.source, folder.config,
                                                                    checkpoint::WeightNames(folder.config)));
      COMOE_RETURN_IF_ERROR(ReadHubState(options.hub_state, bundle.model_hash_, *bundle.hub_));
    }
  }
  Progress progress(absl::StrCat("loading experts of ", folder.name), options.quiet);
  base::ThreadPool pool(base::UsableCores(), "comoe-load");
  const checkpoint::WeightNames names(folder.config);
  COMOE_RETURN_IF_ERROR(cache->Load({.tensors = *folder.source,
                                     .names = names,
                                     .pool = pool,
                                     .orders = bundle.director_->InitialOrders(),
                                     .progress = [&progress](std::uint64_t done, std::uint64_t total) {
                                       progress.UpdateBytes(done, total);
                                     }}));
  bundle.tiers_ = cache.get();
  parts.experts = std::move(cache);
  const kernels::KernelTable* on_host =
      options.kernels == "ref" ? &kernels::RefKernels() : &kernels::EmulatedKernels();
  parts.kernels = on_host;
  if (options.device == "cuda") {
    COMOE_ASSIGN_OR_RETURN(parts.kernels, CudaKernelsFor(options, *bundle.device_));
  }
  parts.capture_steps = options.cuda_graphs == "on";
  parts.host_lane_kernels = options.host_lane == "on" ? on_host : nullptr;
  parts.copy_limit = options.copy_limit;
  return absl::OkStatus();
}

// What stands around the policy's decisions.
void WrapDirector(const EngineOptions& options, Bundle& bundle) {
  if (bundle.hub_ != nullptr && options.metrics != nullptr) {
    bundle.director_ =
        routing::MakeReportingDirector(std::move(bundle.director_), *bundle.hub_, *options.metrics);
  }
  if (options.routing_observer) {
    bundle.director_ = routing::MakeTraceRecorder(
        std::move(bundle.director_),
        [observer = options.routing_observer](const api::RoutingObservation& seen,
                                              absl::Span<const routing::TraceRow>) { observer(seen); });
  }
  if (options.wrap_director) {
    bundle.director_ = options.wrap_director(std::move(bundle.director_));
  }
  if (!options.timeline.empty()) {
    bundle.timeline_ = std::make_shared<Timeline>(options.timeline, options.timeline_steps, *bundle.device_);
    bundle.device_->SetTimeline(bundle.timeline_.get());
    bundle.director_ = MakeTimelineDirector(std::move(bundle.director_), bundle.timeline_);
  }
}

absl::Status LoadParts(const EngineOptions& options, const CheckpointFolder& folder, std::uint64_t kv_bytes,
                       Bundle& bundle) {
  runtime::EngineParts parts;
  parts.info =
      runtime::DescribeModel(folder.config, folder.generation, folder.tensors.expert_dtype, folder.name);
  parts.config = folder.config;
  COMOE_ASSIGN_OR_RETURN(parts.kv_dtype, KvDType(options));
  COMOE_ASSIGN_OR_RETURN(
      parts.weights, model::LoadWeights(*folder.source, folder.config, checkpoint::WeightNames(folder.config),
                                        *bundle.device_));
  COMOE_RETURN_IF_ERROR(options.device == "cpu" ? LoadResident(options, folder, bundle, parts)
                                                : LoadTiered(options, folder, bundle, parts));
  WrapDirector(options, bundle);
  parts.device = bundle.device_.get();
  parts.director = bundle.director_.get();
  parts.max_rows = options.max_batch_tokens;
  parts.max_sequences = options.max_sequences;
  parts.kv_bytes = kv_bytes;
  parts.metrics = options.device == "cpu" ? nullptr : options.metrics;  // where experts never move
  bundle.description_ =
      absl::StrCat(bundle.device_->Describe(), ", kernels ", parts.kernels->name, ", policy ",
                   bundle.director_->policy(), ", KV ", tensor::DTypeName(parts.kv_dtype),
                   options.device_reason.empty() ? "" : absl::StrCat(" (", options.device_reason, ")"));
  COMOE_ASSIGN_OR_RETURN(bundle.engine_, runtime::MakeEngine(std::move(parts)));
  return absl::OkStatus();
}

}  // namespace

std::string PolicyOf(const EngineOptions& options) {
  return !options.policy.empty() ? options.policy : (options.device == "cpu" ? "resident" : "hub");
}

std::uint64_t UsableBytes(const base::HostMemory& host) {
  return static_cast<std::uint64_t>(static_cast<double>(host.available_bytes) * kUsableShare);
}

absl::StatusOr<std::uint64_t> HostBytes(const EngineOptions& options, const checkpoint::MemoryPlan& plan) {
  if (options.device == "cpu") {
    return plan.total_bytes;
  }
  COMOE_ASSIGN_OR_RETURN(const TierBudget budget, PlanTiers(options, plan.num_experts, plan.expert_bytes));
  const bool apart = options.device == "cuda";  // its memory is not the host's
  const std::int64_t device = apart ? 0 : budget.device_slots + budget.device_staging_slots;
  const std::int64_t pinned = budget.pinned_slots + budget.pinned_staging_slots;
  const std::int64_t host =
      options.expert_file.empty() && budget.pinned_slots < plan.num_experts ? plan.num_experts : 0;
  return (apart ? 0 : plan.resident_bytes) +
         static_cast<std::uint64_t>(device + pinned + host) * plan.expert_bytes;
}

absl::Status CheckEngineOptions(const EngineOptions& options) {
  if (options.model.empty()) {
    return absl::InvalidArgumentError("which model? Give --model DIR, a checkpoint folder");
  }
  if (std::isnan(options.expert_cache_fraction)) {
    return absl::InvalidArgumentError("--expert-cache-fraction is nan: it lies in (0, 1]");
  }
  COMOE_RETURN_IF_ERROR(CheckGivenFlags(options));
  COMOE_RETURN_IF_ERROR(HubParametersOf(options).status());
  if (!options.timeline.empty()) {
    COMOE_RETURN_IF_ERROR(CheckOutputPath("--timeline", options.timeline));
  }
  if (options.device == "cpu") {
    if (options.policy != "resident" && !options.policy.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("--policy ", options.policy,
                       " needs a device apart from the host (--device cuda or emulated); on the "
                       "cpu device every expert is computed where it lies: use resident"));
    }
    std::vector<std::string> of_tiers;
    const auto note = [&of_tiers](const char* flag, bool given) {
      if (given) {
        of_tiers.push_back(flag);
      }
    };
    note("--expert-cache-bytes", !options.expert_cache_bytes.empty());
    note("--expert-cache-fraction", options.expert_cache_fraction >= 0.0);
    note("--pinned-bytes", !options.pinned_bytes.empty());
    note("--page-lock off", options.page_lock != "on");
    note("--host-lane", !options.host_lane.empty());
    note("--tiers exclusive", options.tiers != "inclusive");
    note("--expert-file", !options.expert_file.empty());
    if (!of_tiers.empty()) {
      return absl::UnimplementedError(absl::StrCat(
          absl::StrJoin(of_tiers, " and "), of_tiers.size() == 1 ? " needs" : " need",
          " a device apart from the host (--device cuda or emulated): the cpu device has no tiers, "
          "so leave ",
          of_tiers.size() == 1 ? "it" : "them", " out"));
    }
  } else {
    COMOE_RETURN_IF_ERROR(CheckOffloadOptions(options));
    if (options.page_lock != "on" && options.policy == "resident") {
      return absl::InvalidArgumentError(
          "--page-lock off shows what copies of experts from ordinary memory cost, and --policy resident "
          "copies "
          "none: choose another policy");
    }
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
  if (options.device == "cpu") {
    options.device = "auto";
  }
  app.add_option(
         "--device", options.device,
         "cpu, cuda, auto (cuda where there is one), or emulated: a simulated accelerator, for tests and "
         "studies")
      ->check(CLI::IsMember({"auto", "cpu", "emulated", "cuda"}))
      ->capture_default_str();
  app.parse_complete_callback([&app, &options] {
    NoteGivenFlags(app, options);
    ChooseDevice(options);
    WarnOfIdleFlags(options);
  });
  app.add_option("--cuda-device", options.cuda_device, "which NVIDIA card")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option(
         "--cuda-graphs", options.cuda_graphs,
         "on | off: what a step does between two decisions is launched on an NVIDIA card as one graph")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_flag("--nvtx", options.nvtx,
               "name steps, layers and stages in the timeline of a profiler (nsys) of an NVIDIA card");
  app.add_option("--cuda-plugin", options.cuda_plugin,
                 "libcomoe_cuda.so (default: beside the program, or in ../lib)");
  app.add_option(
         "--activations", options.activations,
         "what matrix products on an NVIDIA card make of activations: f32, or bf16: faster, and not exact")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--policy", options.policy,
                 "how experts are placed and moved: naive, static, lru, simple, hub, resident (default: "
                 "resident on the cpu and where a card has room for all, else hub)");
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
  app.add_option(
         "--page-lock", options.page_lock,
         "on | off: the memory that experts are copied to the device from; off is slow, and shows what "
         "page-locking is worth")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option("--host-lane", options.host_lane,
                 "on | off: may the CPU compute missed experts (needs a device apart from the host)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option(
         "--tiers", options.tiers,
         "inclusive: what is on the device also lies on the host; exclusive: an expert lies in one tier only")
      ->check(CLI::IsMember({"inclusive", "exclusive"}))
      ->capture_default_str();
  app.add_option("--expert-file", options.expert_file,
                 "packed file for the experts that host memory has no room for; made when it is not there");
  app.add_option("--hub-mode", options.hub_mode,
                 "policy hub: latency prefetches more, throughput only the near certain")
      ->check(CLI::IsMember({"latency", "throughput"}))
      ->capture_default_str();
  app.add_option("--hub", options.hub_set, "policy hub: NAME=VALUE,...; docs/TUNING.md lists the names");
  app.add_option("--hub-state", options.hub_state,
                 "policy hub: starts with what this file says was learnt; serve writes it when it drains");
  app.add_option("--hot-trace", options.hot_trace,
                 "routing trace (.npz) that says which experts are hot (default: the model's own)");
  app.add_option("--emulated", options.emulated,
                 "rates of the emulated accelerator: pcie3x16, pcie4x16, pcie5x8, ...")
      ->capture_default_str();
  app.add_option("--emulated-clock", options.emulated_clock, "virtual: times are calculated; real: they pass")
      ->check(CLI::IsMember({"virtual", "real"}))
      ->capture_default_str();
  app.add_option("--timeline", options.timeline,
                 "write what every lane does during the first steps, as trace-event JSON (Perfetto)");
  app.add_option("--timeline-steps", options.timeline_steps, "how many steps")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
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

absl::StatusOr<std::unique_ptr<EngineBundle>> LoadEngine(const EngineOptions& given) {
  const absl::Time start = absl::Now();
  COMOE_RETURN_IF_ERROR(CheckEngineOptions(given));
  EngineOptions options = given;
  options.policy = PolicyOf(options);
  COMOE_ASSIGN_OR_RETURN(CheckpointFolder folder, OpenCheckpoint(options.model, options.widen));
  auto bundle = std::make_unique<Bundle>();
  if (options.device == "cpu") {
    bundle->device_ = device::MakeCpuDevice(options.threads > 0 ? options.threads : base::UsableCores());
  } else {
    const std::uint64_t blob_bytes =
        checkpoint::PlanMemory(folder.config, folder.tensors.expert_dtype).expert_bytes;
    if (options.device == "cuda" && options.keep != nullptr) {
      COMOE_ASSIGN_OR_RETURN(bundle->device_, options.keep->DeviceFor(options, blob_bytes));
      bundle->keep_ = options.keep;
    } else {
      COMOE_ASSIGN_OR_RETURN(bundle->device_, MakeOffloadDevice(options, blob_bytes));
    }
  }
  if (given.policy.empty() && options.device == "cuda" && AllFit(options, folder, *bundle->device_)) {
    options.policy = "resident";
  }
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, CheckMemory(options, folder, *bundle->device_));
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
