#include "engine/runtime/moe_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/bytes.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/model/forward_pass.h"
#include "engine/model/host_lane.h"
#include "engine/model/workspace.h"
#include "engine/runtime/lane_rates.h"
#include "engine/runtime/offload_ledger.h"
#include "engine/runtime/plan_check.h"
#include "engine/runtime/timed_director.h"
#include "engine/sampling/sampler.h"

namespace comoe::runtime {
namespace {

OffloadLedger::Phase PhaseOf(const api::StepPlan& plan) {
  bool prefill = false;
  bool decode = false;
  for (const api::PlanSpan& span : plan.spans) {
    (span.tokens.size() > 1 ? prefill : decode) = true;
  }
  return prefill && decode ? OffloadLedger::Phase::kMixed
                           : (prefill ? OffloadLedger::Phase::kPrefill : OffloadLedger::Phase::kDecode);
}

// What was reserved, by what for: sums to the memory that this process took for the model.
void ReportMemory(base::MetricsSink& sink, const EngineParts& parts, const api::EngineCapacity& capacity,
                  std::uint64_t host_lane_bytes) {
  api::OffloadTotals totals;
  parts.experts->AddTotals(totals);
  const auto device = [&sink](const char* pool, std::uint64_t bytes) {
    sink.AddGauge("device_memory_bytes", "Device memory reserved, by what for.", {{"pool", pool}})
        .Set(static_cast<double>(bytes));
  };
  const auto pinned = [&sink](const char* pool, std::uint64_t bytes) {
    sink.AddGauge("host_pinned_bytes", "Page-locked host memory reserved, by what for.", {{"pool", pool}})
        .Set(static_cast<double>(bytes));
  };
  const api::TierTotals& on_device = totals.tiers[base::Tier::kDevice];
  const api::TierTotals& on_host = totals.tiers[base::Tier::kPinned];
  device("weights", parts.weights.bytes());
  device("kv", capacity.kv_bytes);
  device("workspace", capacity.workspace_bytes);
  device("expert_cache", on_device.capacity_bytes - on_device.staging_bytes);
  device("staging", on_device.staging_bytes);
  pinned("expert_cache", on_host.capacity_bytes - on_host.staging_bytes);
  pinned("staging", on_host.staging_bytes);
  pinned("workspace", host_lane_bytes);
}

class MoeEngine final : public api::Engine {
 public:
  MoeEngine(EngineParts parts, model::CacheGroups groups, model::KvPool kv, model::Workspace work,
            std::unique_ptr<device::Stream> stream, std::unique_ptr<model::HostLane> host_lane,
            std::unique_ptr<model::FullLayers> full_layers, const api::LaneState& lanes)
      : parts_(std::move(parts)),
        groups_(std::move(groups)),
        kv_(std::move(kv)),
        work_(std::move(work)),
        stream_(std::move(stream)),
        host_lane_(std::move(host_lane)),
        full_layers_(std::move(full_layers)),
        director_(*parts_.director),
        forward_(parts_.weights, {.config = parts_.config,
                                  .weights = parts_.weights,
                                  .kernels = *parts_.kernels,
                                  .groups = groups_,
                                  .kv = kv_,
                                  .experts = *parts_.experts,
                                  .director = director_,
                                  .stream = *stream_,
                                  .work = work_,
                                  .host_lane = host_lane_.get(),
                                  .full_layers = full_layers_.get(),
                                  .captured = parts_.capture_steps ? &captured_ : nullptr,
                                  .lanes = lanes,
                                  .copy_limit = parts_.copy_limit}),
        ledger_(*parts_.device, parts_.metrics) {
    capacity_.max_rows = parts_.max_rows;
    capacity_.max_sequences = parts_.max_sequences;
    capacity_.num_blocks = kv_.num_blocks();
    capacity_.kv_bytes = kv_.bytes();
    capacity_.workspace_bytes = work_.buffer.size();
    const std::int32_t blocks = *std::min_element(capacity_.num_blocks.begin(), capacity_.num_blocks.end());
    if (parts_.metrics != nullptr) {
      ReportMemory(*parts_.metrics, parts_, capacity_, host_lane_ == nullptr ? 0 : host_lane_->bytes());
    }
    capacity_.max_positions = std::min(parts_.config.context_length, blocks * tensor::kKvBlockTokens);
    parts_.experts->UseStream(stream_.get());
  }
  ~MoeEngine() override { parts_.experts->UseStream(nullptr); }
  MoeEngine(const MoeEngine&) = delete;
  MoeEngine& operator=(const MoeEngine&) = delete;

  const api::ModelInfo& model_info() const override { return parts_.info; }
  const api::EngineCapacity& capacity() const override { return capacity_; }

  absl::StatusOr<api::StepResult> Step(const api::StepPlan& plan) override {
    const absl::Time start = absl::Now();
    COMOE_RETURN_IF_ERROR(health());
    COMOE_RETURN_IF_ERROR(CheckPlan(plan, parts_.info, capacity_));
    api::StepResult result;
    result.step = plan.step;
    PrepareResult(plan, result);
    director_.BeginStep(plan);
    ledger_.BeginStep();
    std::size_t span = 0;
    std::int64_t first_row = 0;  // of plan.spans[span]
    stream_->BeginStep(plan.step);
    const absl::Status status = forward_.Run(
        plan, [this](const api::PlanSpan& of, std::int64_t row) { return BestWanted(of, row); },
        [&](std::int64_t row, const model::RowLogits& logits) -> absl::Status {
          while (row >= first_row + static_cast<std::int64_t>(plan.spans[span].tokens.size())) {
            first_row += static_cast<std::int64_t>(plan.spans[span].tokens.size());
            ++span;
          }
          return TakeLogits(plan.spans[span], row, first_row, logits, result.spans[span]);
        });
    stream_->EndStep();
    director_.EndStep();
    COMOE_DCHECK(parts_.experts->leased() == 0, "no lease outlives its step");
    ledger_.EndStep(PhaseOf(plan), work_.serving, *parts_.experts, director_.seconds());
    COMOE_RETURN_IF_ERROR(health());  // says more than what it made fail
    COMOE_RETURN_IF_ERROR(status);
    director_.ObserveStepTime(ledger_.step_times());
    if (work_.any_row_failed) {
      FailSpans(plan, result);
    }
    result.expert_stall = ledger_.last_stall();
    result.elapsed = absl::Now() - start;
    return result;
  }

  absl::Status health() const override { return parts_.device->health(); }

  void HintPrompt(absl::Span<const base::TokenId> tokens) override { director_.HintPrompt(tokens); }

  api::OffloadTotals offload_totals() const override { return ledger_.totals(); }

  absl::Status Truncate(base::SequenceId /*sequence*/, std::int64_t num_tokens) override {
    if (num_tokens < 0) {
      return absl::InvalidArgumentError(absl::StrCat("cannot truncate to ", num_tokens, " tokens"));
    }
    return absl::OkStatus();  // every group is kept in blocks: later positions are overwritten
  }

  absl::StatusOr<api::StateSnapshot> Snapshot(const std::vector<api::GroupState>& groups,
                                              std::int64_t num_tokens) override {
    return kv_.Snapshot(groups, num_tokens);
  }
  absl::Status Restore(const api::StateSnapshot& snapshot,
                       const std::vector<api::GroupState>& groups) override {
    return kv_.Restore(snapshot, groups);
  }

 private:
  void PrepareResult(const api::StepPlan& plan, api::StepResult& result) const {
    result.spans.resize(plan.spans.size());
    for (std::size_t i = 0; i < plan.spans.size(); ++i) {
      const api::PlanSpan& span = plan.spans[i];
      result.spans[i].sequence = span.sequence;
      result.spans[i].scores.reserve(span.score.size());
      if (span.return_logits) {
        const std::size_t rows = span.logits == api::LogitsMode::kAll ? span.tokens.size() : 1;
        result.spans[i].logits.reserve(rows * static_cast<std::size_t>(parts_.info.vocab_size));
      }
    }
  }

  // Spans with a row that had to do without an expert have a status and nothing else.
  void FailSpans(const api::StepPlan& plan, api::StepResult& result) const {
    std::size_t row = 0;
    for (std::size_t i = 0; i < plan.spans.size(); ++i) {
      for (std::size_t end = row + plan.spans[i].tokens.size(); row < end; ++row) {
        if (result.spans[i].status.ok() && !work_.row_status[row].ok()) {
          api::SpanResult failed;
          failed.sequence = plan.spans[i].sequence;
          failed.status = work_.row_status[row];
          result.spans[i] = std::move(failed);
        }
      }
    }
  }

  // How many of the highest logits of the span's row `row` are enough; 0: all of them are looked at.
  std::int64_t BestWanted(const api::PlanSpan& span, std::int64_t row) const {
    static_assert(sampling::kMostBest == kernels::kMostTopLogits);
    if (span.return_logits || span.top_logprobs >= 0 || row < static_cast<std::int64_t>(span.score.size())) {
      return 0;
    }
    if (!span.sample.has_value() || row + 1 < static_cast<std::int64_t>(span.tokens.size())) {
      return 1;  // nobody looks
    }
    return sampling::BestNeeded(*span.sample, span.context, parts_.info.vocab_size);
  }

  // Row `step_row` of the step, in a span that begins at `first_row`, has logits: copy them out, score the
  // token that follows, sample from the last.
  absl::Status TakeLogits(const api::PlanSpan& span, std::int64_t step_row, std::int64_t first_row,
                          const model::RowLogits& values, api::SpanResult& result) {
    if (!work_.row_status[static_cast<std::size_t>(step_row)].ok()) {
      return absl::OkStatus();
    }
    const std::int64_t row = step_row - first_row;
    const absl::Span<const float> logits = values.all;
    if (span.return_logits) {
      result.logits.insert(result.logits.end(), logits.begin(), logits.end());
    }
    if (row < static_cast<std::int64_t>(span.score.size())) {
      COMOE_ASSIGN_OR_RETURN(api::LogprobRow scored,
                             sampling::Score(logits, span.score[static_cast<std::size_t>(row)],
                                             span.score_top_logprobs, scratch_));
      result.scores.push_back(std::move(scored));
    }
    if (span.sample.has_value() && row + 1 == static_cast<std::int64_t>(span.tokens.size())) {
      // The position of the token that is drawn: the same draw whatever the batch, the chunks or a
      // preemption.
      const auto position = static_cast<std::uint64_t>(span.start_position + row + 1);
      if (!values.best.empty()) {
        COMOE_ASSIGN_OR_RETURN(
            result.token, sampling::SampleFromBest({values.best_ids, values.best}, parts_.info.vocab_size,
                                                   *span.sample, position, scratch_));
        return absl::OkStatus();
      }
      COMOE_ASSIGN_OR_RETURN(result.token,
                             sampling::Sample(logits, *span.sample, span.context, position, scratch_));
      if (span.top_logprobs >= 0) {
        COMOE_ASSIGN_OR_RETURN(result.logprobs,
                               sampling::Score(logits, *result.token, span.top_logprobs, scratch_));
      }
    }
    return absl::OkStatus();
  }

  EngineParts parts_;
  const model::CacheGroups groups_;
  const model::KvPool kv_;
  model::Workspace work_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<model::HostLane> host_lane_;
  std::unique_ptr<model::FullLayers> full_layers_;  // nullptr: kernels that the host tells what to run
  model::CapturedSteps captured_;
  TimedDirector director_;  // around the parts'
  api::EngineCapacity capacity_;
  model::ForwardPass forward_;
  OffloadLedger ledger_;
  sampling::SamplerScratch scratch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<api::Engine>> MakeEngine(EngineParts parts) {
  model::CacheGroups groups = model::MakeCacheGroups(parts.config, parts.kv_dtype);
  parts.info.cache_groups = groups.groups;
  absl::StatusOr<model::KvPool> kv =
      model::KvPool::Create(parts.config, groups, parts.kv_bytes, *parts.device);
  COMOE_RETURN_IF_ERROR(base::Annotate(kv.status(), "KV memory"));
  absl::StatusOr<model::Workspace> work =
      model::Workspace::Create(parts.config, parts.max_rows, *parts.device);
  COMOE_RETURN_IF_ERROR(base::Annotate(work.status(), "workspace"));
  COMOE_ASSIGN_OR_RETURN(std::unique_ptr<device::Stream> stream,
                         parts.device->CreateStream("compute", device::StreamKind::kCompute));
  std::unique_ptr<model::HostLane> host_lane;
  if (parts.host_lane_kernels != nullptr) {
    absl::StatusOr<std::unique_ptr<model::HostLane>> lane = model::HostLane::Create(
        parts.config, parts.max_rows, *parts.host_lane_kernels, *parts.kernels, *parts.device);
    COMOE_RETURN_IF_ERROR(base::Annotate(lane.status(), "host lane"));
    host_lane = *std::move(lane);
  }
  std::unique_ptr<model::FullLayers> full_layers;
  if (kernels::HasMoeResident(*parts.kernels)) {
    COMOE_ASSIGN_OR_RETURN(
        full_layers, model::FullLayers::Create(parts.config, parts.max_rows, *parts.experts, *parts.device));
  }
  COMOE_ASSIGN_OR_RETURN(
      const api::LaneState lanes,
      MeasureLanes(parts.experts->layout(), *parts.kernels, *work, *stream, host_lane.get(), *parts.device));
  if (host_lane != nullptr && !parts.device->simulated()) {
    base::Logf(base::LogLevel::kDebug, "engine",
               "alone, an expert takes %.0f us on the device and %.0f us on the host (%.0f us more for each "
               "further row)",
               1e6 * lanes.device_seconds_per_expert, 1e6 * lanes.host_seconds_per_expert,
               1e6 * lanes.host_seconds_per_row);
  }
  return std::make_unique<MoeEngine>(std::move(parts), std::move(groups), *std::move(kv), *std::move(work),
                                     std::move(stream), std::move(host_lane), std::move(full_layers), lanes);
}

api::ModelInfo DescribeModel(const checkpoint::ModelConfig& config,
                             const checkpoint::GenerationDefaults& defaults, tensor::DType dtype,
                             const std::string& name) {
  const checkpoint::MemoryPlan memory = checkpoint::PlanMemory(config, dtype);
  api::ModelInfo info;
  info.name = name;
  info.architecture = config.model_type;
  info.weight_dtype = std::string(tensor::DTypeName(dtype));
  info.context_length = config.context_length;
  info.vocab_size = static_cast<std::int32_t>(config.vocab_size);
  info.num_layers = static_cast<std::int32_t>(config.num_layers());
  info.num_moe_layers = static_cast<std::int32_t>(memory.num_sparse_layers);
  info.num_experts = static_cast<std::int32_t>(config.num_experts);
  info.num_experts_per_token = static_cast<std::int32_t>(config.experts_per_token);
  info.total_parameters = memory.total_parameters;
  info.active_parameters = memory.active_parameters;
  info.expert_bytes = memory.expert_bytes;
  info.all_expert_bytes = memory.all_experts_bytes;
  info.resident_bytes = memory.resident_bytes;
  // generation_config.json knows better: chat models end their turns with a token that config.json does not
  // list.
  info.eos_token_ids = defaults.eos_token_ids.empty() ? config.eos_token_ids : defaults.eos_token_ids;
  info.bos_token_id = config.bos_token_id;
  if (defaults.do_sample) {
    info.default_sampling.temperature = static_cast<float>(defaults.temperature);
    info.default_sampling.top_p = static_cast<float>(defaults.top_p);
    info.default_sampling.top_k = defaults.top_k;
    info.default_sampling.min_p = static_cast<float>(defaults.min_p);
  }
  // A greedy completion is penalised too.
  info.default_sampling.repetition_penalty = static_cast<float>(defaults.repetition_penalty);
  return info;
}

}  // namespace comoe::runtime
