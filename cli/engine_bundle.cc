#include "cli/engine_bundle.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/checkpoint_folder.h"
#include "cli/cuda_options.h"
#include "cli/engine_keep.h"
#include "cli/engine_memory.h"
#include "cli/given_flags.h"
#include "cli/offload_options.h"
#include "cli/output_path.h"
#include "cli/progress.h"
#include "cli/timeline.h"
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

absl::Status MakeDevice(const EngineOptions& options, const CheckpointFolder& folder, Bundle& bundle) {
  if (options.device == "cpu") {
    bundle.device_ = device::MakeCpuDevice(options.threads > 0 ? options.threads : base::UsableCores());
    return absl::OkStatus();
  }
  const std::uint64_t blob_bytes =
      checkpoint::PlanMemory(folder.config, folder.tensors.expert_dtype).expert_bytes;
  if (options.device == "cuda" && options.keep != nullptr) {
    COMOE_ASSIGN_OR_RETURN(bundle.device_, options.keep->DeviceFor(options, blob_bytes));
    bundle.keep_ = options.keep;
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(bundle.device_, MakeOffloadDevice(options, blob_bytes));
  return absl::OkStatus();
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

// The policy, and what the hub learnt before.
absl::Status MakeDirector(const EngineOptions& options, const CheckpointFolder& folder,
                          const api::ModelInfo& info, const routing::TierShape& shape, Bundle& bundle) {
  if (options.make_director) {
    bundle.director_ = options.make_director(shape);
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(routing::Policy policy, MakeOffloadPolicy(options, info, shape));
  if (policy.hot_set_is_guess) {
    base::Logf(base::LogLevel::kWarning, "engine",
               "policy static without a trace keeps the first experts of each layer, which need not be the "
               "hot ones: give --hot-trace FILE");
  }
  bundle.hub_ = policy.hub;
  bundle.director_ = std::move(policy.director);
  if (bundle.hub_ == nullptr || options.hub_state.empty()) {
    return absl::OkStatus();
  }
  bundle.hub_state_ = options.hub_state;
  COMOE_RETURN_IF_ERROR(CheckOutputPath("--hub-state", options.hub_state));
  COMOE_ASSIGN_OR_RETURN(bundle.model_hash_, experts::ModelHash(*folder.source, folder.config,
                                                                checkpoint::WeightNames(folder.config)));
  return ReadHubState(options.hub_state, bundle.model_hash_, *bundle.hub_);
}

absl::Status LoadTiered(const EngineOptions& options, const CheckpointFolder& folder, Bundle& bundle,
                        runtime::EngineParts& parts) {
  const checkpoint::MemoryPlan plan =
      checkpoint::PlanMemory(folder.config, folder.tensors.expert_dtype, parts.kv_dtype);
  COMOE_ASSIGN_OR_RETURN(const TierBudget budget, PlanTiers(options, plan.num_experts, plan.expert_bytes));
  experts::TieredOptions tiers = TieredOptions(options, budget);
  COMOE_ASSIGN_OR_RETURN(const runtime::CopyRates rates,
                         runtime::MeasureCopies(*bundle.device_, plan.expert_bytes, tiers.page_lock));
  if (rates.host_to_device > 0.0) {
    tiers.transfers.initial_link_bytes_per_second = rates.host_to_device;
  }
  if (rates.host_to_host > 0.0) {
    tiers.transfers.initial_host_bytes_per_second = rates.host_to_host;
    tiers.transfers.initial_rates_measured = rates.host_to_device > 0.0;
  }
  COMOE_ASSIGN_OR_RETURN(
      std::unique_ptr<experts::TieredExpertCache> cache,
      experts::TieredExpertCache::Create(folder.config, folder.tensors.expert_dtype, tiers, *bundle.device_));
  // As reserved: pinned memory can have been refused.
  const routing::TierShape shape = ShapeOf(options, folder.config, *cache);
  COMOE_RETURN_IF_ERROR(MakeDirector(options, folder, parts.info, shape, bundle));
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
    parts.kernels = &CudaKernelsFor(options);
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

absl::StatusOr<std::unique_ptr<EngineBundle>> LoadEngine(const EngineOptions& given) {
  const absl::Time start = absl::Now();
  COMOE_RETURN_IF_ERROR(CheckEngineOptions(given));
  EngineOptions options = given;
  options.policy = PolicyOf(options);
  COMOE_ASSIGN_OR_RETURN(CheckpointFolder folder, OpenCheckpoint(options.model, options.widen));
  auto bundle = std::make_unique<Bundle>();
  COMOE_RETURN_IF_ERROR(MakeDevice(options, folder, *bundle));
  // Who sets the hub's parameters wants the hub.
  if (given.policy.empty() && !GivenForPolicy(given, "hub") && options.device == "cuda" &&
      AllFit(options, folder, *bundle->device_)) {
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
