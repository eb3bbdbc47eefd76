// Probe: a short run of the policy over the model's own texts, or random ones.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor_probes.h"
#include "cli/engine_bundle.h"
#include "cli/forced_texts.h"
#include "cli/offload_options.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

using base::CopyDirection;
using base::WaitEdge;

constexpr std::int64_t kPrompt = 16;
constexpr double kSlowPredictorSeconds = 0.012;  // the fault: above what is a failure
constexpr double kHidden = 0.3;                  // of copy time: less, and something holds copies up
constexpr double kBusyLink = 0.1;                // of a step: below, there is little to hide
// A model that took longer to load is not loaded again.
constexpr double kMostReloadSeconds = 4.0;

std::vector<std::vector<base::TokenId>> RandomTexts(std::int64_t count, std::int64_t tokens,
                                                    std::int64_t vocabulary) {
  std::vector<std::vector<base::TokenId>> texts(static_cast<std::size_t>(count));
  std::uint64_t draw = 0;
  for (std::vector<base::TokenId>& text : texts) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      text.push_back(
          static_cast<base::TokenId>(base::RandomBits(1, draw++) % static_cast<std::uint64_t>(vocabulary)));
    }
  }
  return texts;
}

absl::StatusOr<std::vector<std::vector<base::TokenId>>> TextsFor(const DoctorContext& context) {
  const DoctorOptions& options = context.options;
  const auto vocabulary = static_cast<std::int32_t>(context.model->config.vocab_size);
  for (const char* name : {"/routing_trace.npz", "/golden_nll.json"}) {
    const std::string path = options.engine.model + name;
    if (IsThere(path)) {
      COMOE_ASSIGN_OR_RETURN(std::vector<std::vector<base::TokenId>> texts, ReadForcedIds(path, vocabulary));
      if (static_cast<std::int64_t>(texts.size()) >= options.batch) {
        return texts;
      }
    }
  }
  return RandomTexts(options.batch, std::min<std::int64_t>(256, context.model->config.context_length),
                     vocabulary);
}

EngineOptions RunOptions(const DoctorOptions& options) {
  EngineOptions engine = options.engine;
  engine.max_sequences = options.batch + 1;
  engine.max_batch_tokens = std::max(options.batch, kPrompt);
  return engine;
}

struct Loaded {
  OffloadRun run;
  double load_seconds = 0.0;
};

// An error of the run, and how many copies had failed by then.
struct FailedRun {
  absl::Status status;
  std::uint64_t failed_copies = 0;
};

absl::StatusOr<Loaded> RunOnce(const EngineOptions& engine, const DoctorOptions& options,
                               const std::vector<std::vector<base::TokenId>>& texts, FailedRun* failed) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle, LoadEngine(engine));
  Loaded loaded;
  loaded.load_seconds = bundle->load_seconds();
  OffloadRunOptions run;
  run.batch = options.batch;
  run.warmup_steps = options.warmup_steps;
  run.steps = options.steps;
  run.prompt = kPrompt;
  absl::StatusOr<OffloadRun> done =
      RunOffload(bundle->engine(), texts, run, [](std::uint64_t, std::uint64_t) {});
  if (!done.ok()) {
    *failed = {done.status(), bundle->engine().offload_totals().failed_copies};
    return done.status();
  }
  loaded.run = *std::move(done);
  return loaded;
}

double HitRate(const api::OffloadTotals& totals) {
  const auto served = static_cast<double>(totals.served_hit + totals.served_fetch + totals.served_host);
  return served > 0.0 ? static_cast<double>(totals.served_hit) / served : 0.0;
}

absl::string_view DependencyOf(WaitEdge edge) {
  switch (edge) {
    case WaitEdge::kDemandCopy:
      return "dependency: copies start when the layer already needs them";
    case WaitEdge::kPrefetchCopy:
      return "dependency: guesses are right but start late, or hold up who queues them";
    case WaitEdge::kSlotFree:
      return "dependency: copies wait for slots that are still read, or on their way";
    case WaitEdge::kStaged:
      return "dependency: copies wait for their source to be staged in page-locked memory";
    case WaitEdge::kHostLane:
    case WaitEdge::kRows:
      break;
  }
  return "dependency: the device waits for the host lane";
}

void JudgeOverlap(const api::OffloadTotals& totals, DoctorContext& context) {
  const double busy = totals.copy_busy[CopyDirection::kHostToDevice];
  const double hidden = busy > 0.0 ? totals.copy_overlapped[CopyDirection::kHostToDevice] / busy : 1.0;
  const auto most =
      static_cast<WaitEdge>(std::max_element(totals.stalled.values.begin(), totals.stalled.values.end()) -
                            totals.stalled.values.begin());
  const bool low = hidden < kHidden && busy > kBusyLink * totals.wall;
  Finding& found = context.Add(
      "overlap.run", low ? Severity::kFinding : Severity::kOk,
      absl::StrFormat("%.0f %% of copy time is hidden behind compute%s", 100.0 * hidden,
                      low ? absl::StrCat("; ", DependencyOf(most), " (", base::WaitEdgeName(most), ", ",
                                         absl::StrFormat("%.0f %% of the step)",
                                                         100.0 * totals.stalled[most] / totals.wall))
                          : ""),
      absl::StrFormat("at least %.0f %%, where copies matter", 100.0 * kHidden),
      "a policy that looks ahead (--policy hub or simple), more slots, or the host lane (--host-lane on)");
  found.values = {{"hidden_share", hidden}, {"copy_busy_seconds", busy}, {"wall_seconds", totals.wall}};
}

void AddFailedCopies(std::uint64_t failed, const std::string& more, DoctorContext& context) {
  context
      .Add("run.copies", failed > 0 ? Severity::kFailure : Severity::kOk,
           absl::StrCat(failed, " failed or late", more.empty() ? "" : absl::StrCat(": ", more)), "none",
           "look at the log and at dmesg (Xid, AER): cable, riser, power or card")
      .values = {{"failed_copies", static_cast<double>(failed)}};
}

void JudgeCopies(const api::OffloadTotals& totals, DoctorContext& context) {
  AddFailedCopies(totals.failed_copies,
                  totals.lost_slots > 0 ? absl::StrCat(totals.lost_slots, " slots lost") : "", context);
  context
      .Add("run.pageable_source", totals.unpinned_copies > 0 ? Severity::kFailure : Severity::kOk,
           absl::StrCat(totals.unpinned_copies, " copies came straight from pageable memory"), "none",
           "page-locked memory was refused, is too small or not asked for: link.pinned, --pinned-bytes, "
           "--page-lock")
      .values = {{"unpinned_copies", static_cast<double>(totals.unpinned_copies)}};
}

// The same with twice the slots: what capacity would give.
absl::Status RunRoomy(const std::vector<std::vector<base::TokenId>>& texts, DoctorContext& context) {
  const checkpoint::MemoryPlan& plan = *context.plan;
  COMOE_ASSIGN_OR_RETURN(const TierBudget budget,
                         PlanTiers(context.engine(), plan.num_experts, plan.expert_bytes));
  const std::int64_t slots = budget.device_slots + budget.device_staging_slots;
  EngineOptions roomy = RunOptions(context.options);
  if (slots >= plan.num_experts || roomy.policy == "naive" || roomy.policy == "resident") {
    return absl::OkStatus();
  }
  roomy.expert_cache_bytes.clear();
  roomy.expert_cache_fraction =
      std::min(1.0, 2.0 * static_cast<double>(slots) / static_cast<double>(plan.num_experts));
  FailedRun failed;
  COMOE_ASSIGN_OR_RETURN(Loaded loaded, RunOnce(roomy, context.options, texts, &failed));
  context.roomy_run = std::move(loaded.run);
  return absl::OkStatus();
}

}  // namespace

absl::Status ProbeRun(DoctorContext& context) {
  if (!context.plan.has_value() || context.device == nullptr) {
    return absl::OkStatus();
  }
  if (!context.plan_fits) {
    context.Add("run.steps", Severity::kNote, "not run: the memory plan has to fit first");
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::vector<base::TokenId>> texts, TextsFor(context));
  EngineOptions engine = RunOptions(context.options);
  const double delay = context.options.fault == "slow-predictor" ? kSlowPredictorSeconds : 0.0;
  engine.wrap_director = [&context, delay](std::unique_ptr<api::ExpertDirector> inner) {
    return MakeTimedDirector(std::move(inner), &context.director, delay);
  };
  FailedRun failed;
  absl::StatusOr<Loaded> done = RunOnce(engine, context.options, texts, &failed);
  if (failed.failed_copies > 0) {
    AddFailedCopies(failed.failed_copies, std::string(failed.status.message()), context);
    return absl::OkStatus();
  }
  COMOE_RETURN_IF_ERROR(done.status());
  Loaded loaded = *std::move(done);
  context.run = std::move(loaded.run);
  const api::OffloadTotals& totals = context.run->totals;
  Finding& found = context.Add(
      "run.steps", Severity::kOk,
      absl::StrFormat(
          "%d steps of %d rows, policy %s: %.3f ms a step, %.0f tokens/s%s; hits %.0f %%, host %.0f %%",
          context.options.steps, context.options.batch, engine.policy,
          1e3 * context.run->seconds() / static_cast<double>(context.options.steps),
          context.run->tokens_per_second(), context.device->simulated() ? " (simulated)" : "",
          100.0 * HitRate(totals),
          100.0 * static_cast<double>(totals.served_host) /
              std::max(1.0,
                       static_cast<double>(totals.served_hit + totals.served_fetch + totals.served_host))),
      "it runs");
  found.values = {{"step_seconds", context.run->seconds() / static_cast<double>(context.options.steps)},
                  {"tokens_per_second", context.run->tokens_per_second()},
                  {"hit_rate", HitRate(totals)}};
  JudgeCopies(totals, context);
  JudgeOverlap(totals, context);
  return loaded.load_seconds <= kMostReloadSeconds ? RunRoomy(texts, context) : absl::OkStatus();
}

}  // namespace comoe::cli
