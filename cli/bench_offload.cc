// `comoe bench offload`: policies at equal memory on identical steps.
#include "cli/bench_offload.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/bench.h"
#include "cli/checkpoint_folder.h"
#include "cli/engine_bundle.h"
#include "cli/engine_keep.h"
#include "cli/finite.h"
#include "cli/given_flags.h"
#include "cli/progress.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

constexpr const char* kPolicies[] = {"naive", "naive-pageable", "static", "lru", "simple", "hub", "resident"};

EngineOptions OptionsFor(const BenchOffloadOptions& options, const std::string& policy, double capacity,
                         std::int64_t batch) {
  EngineOptions engine = options.engine;
  engine.policy = policy == "naive-pageable" ? "naive" : policy;
  const bool pageable = policy == "naive-pageable";
  const bool emulated = engine.device == "emulated";  // whose system locks no pages then, and stages
  engine.refuse_pinned = pageable && emulated;
  engine.page_lock = pageable && !emulated ? "off" : options.engine.page_lock;
  engine.expert_cache_fraction = policy == "resident" ? 1.0 : capacity;
  engine.max_sequences = batch + 1;
  engine.max_batch_tokens = std::max<std::int64_t>(batch, options.run.prompt);
  engine.copy_computes = options.copy_computes;
  engine.host_computes = options.host_computes;
  engine.dense_computes = options.dense_computes;
  engine.given.clear();  // they are for some of the points
  return engine;
}

absl::StatusOr<std::vector<double>> ParseShares(const std::string& text) {
  std::vector<double> shares;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double share = 0.0;
    if (!absl::SimpleAtod(part, &share) || !(share > 0.0 && share <= 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat("--capacities: '", part, "' is no share in (0, 1]"));
    }
    shares.push_back(share);
  }
  return shares;
}

// What --host-lane is to be, one after the other.
absl::StatusOr<std::vector<std::string>> HostLanes(const BenchOffloadOptions& options) {
  if (options.host_lanes.empty()) {
    return std::vector<std::string>{options.engine.host_lane};
  }
  const std::vector<std::string> lanes = absl::StrSplit(options.host_lanes, ',');
  for (const std::string& lane : lanes) {
    if (lane != "on" && lane != "off") {
      return absl::InvalidArgumentError(absl::StrCat("--host-lanes: '", lane, "' is neither on nor off"));
    }
  }
  if (!options.engine.host_lane.empty()) {
    return absl::InvalidArgumentError("give --host-lane or --host-lanes, not both");
  }
  return lanes;
}

std::string DefaultIds(const std::string& model) {
  for (const char* name : {"/routing_trace.npz", "/golden_nll.json"}) {
    if (IsThere(model + name)) {
      return model + name;
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<OffloadPoint> MeasureOffload(const BenchOffloadOptions& options, const Texts& texts,
                                            const std::string& policy, double capacity, std::int64_t batch) {
  if (policy == "naive-pageable" && options.engine.device == "cpu") {
    return absl::InvalidArgumentError(
        "naive-pageable needs a device apart from the host (--device cuda or emulated): on the cpu nothing "
        "is copied");
  }
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle,
                         LoadEngine(OptionsFor(options, policy, capacity, batch)));
  OffloadRunOptions run = options.run;
  run.batch = batch;
  const bool host_lane = options.engine.host_lane == "on";
  Progress progress(absl::StrFormat("%s, %.0f %%, batch %d%s", policy, 100.0 * capacity, batch,
                                    host_lane ? ", host lane" : ""),
                    options.engine.quiet);
  OffloadPoint point{policy, capacity, batch, host_lane, bundle->tiers_description(), {}, true};
  COMOE_ASSIGN_OR_RETURN(point.run, RunOffload(bundle->engine(), texts, run,
                                               [&progress](std::uint64_t done, std::uint64_t total) {
                                                 progress.Update(done, total, "steps");
                                               }));
  return point;
}

absl::StatusOr<std::vector<OffloadPoint>> ComparePolicies(const BenchOffloadOptions& options,
                                                          const OffloadStudy& study) {
  const std::vector<std::string> policies = absl::StrSplit(options.policies, ',');
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::string> lanes, HostLanes(options));
  BenchOffloadOptions moved = options;
  std::vector<OffloadPoint> points;
  for (const double share : study.shares) {
    for (const std::int64_t batch : study.batches) {
      const std::size_t first = points.size();
      for (const std::string& lane : lanes) {
        moved.engine.host_lane = lane;
        for (const std::string& policy : policies) {
          COMOE_ASSIGN_OR_RETURN(OffloadPoint point,
                                 MeasureOffload(moved, study.texts, policy, share, batch));
          points.push_back(std::move(point));
          points.back().same_tokens = points.back().run.last_logits == points[first].run.last_logits;
        }
      }
    }
  }
  return points;
}

namespace {

absl::StatusOr<OffloadStudy> ReadStudy(const BenchOffloadOptions& options, std::string* path) {
  OffloadStudy study;
  COMOE_ASSIGN_OR_RETURN(study.batches, ParseList("--batch", options.batches, 1, 1024));
  COMOE_ASSIGN_OR_RETURN(study.shares, ParseShares(options.capacities));
  COMOE_ASSIGN_OR_RETURN(const CheckpointFolder folder,
                         OpenCheckpoint(options.engine.model, options.engine.widen));
  study.model = folder.name;
  TextFlags texts = options.texts;
  if (texts.path().empty()) {
    texts.ids = DefaultIds(options.engine.model);
  }
  *path = texts.path();
  if (path->empty()) {
    return absl::InvalidArgumentError(
        "which text? Give --text FILE, plain text, or --force-ids FILE, a routing trace (.npz) or JSON "
        "{\"ids\": [[id, ...], ...]}: routing depends on what is said");
  }
  COMOE_ASSIGN_OR_RETURN(study.texts, ReadTexts(texts, options.engine.model,
                                                static_cast<std::int32_t>(folder.config.vocab_size)));
  return study;
}

absl::Status Compare(const BenchOffloadOptions& options, const OffloadStudy& study, const std::string& ids) {
  COMOE_ASSIGN_OR_RETURN(const std::vector<OffloadPoint> points, ComparePolicies(options, study));
  if (options.json) {
    const nlohmann::json out = {{"model", study.model},
                                {"device", options.engine.device},
                                {"ids", ids},
                                {"points", OffloadJson(points)}};
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf("%s, %s\n%s\n", study.model.c_str(), options.engine.device.c_str(),
                points.back().tiers.c_str());
    PrintOffloadTable(points);
  }
  if (!options.plot.empty()) {
    COMOE_RETURN_IF_ERROR(WritePlots(options.plot, OffloadPlots(points)));
    std::fprintf(stderr, "plot: %s\n", options.plot.c_str());
  }
  return absl::OkStatus();
}

// Flags that would not do what they say.
absl::Status CheckFlags(const BenchOffloadOptions& options) {
  const bool sweep = !options.sweeps.empty();
  if (options.ablation && sweep) {
    return absl::InvalidArgumentError("--ablation and --sweep are two studies: give one of them");
  }
  if (!options.host_lanes.empty() && (options.ablation || sweep)) {
    return absl::InvalidArgumentError(
        "--host-lanes compares policies: with --ablation or --sweep leave it out");
  }
  if (sweep && (!options.engine.hub_set.empty() || options.engine.hub_mode != EngineOptions().hub_mode)) {
    return absl::InvalidArgumentError(
        "--sweep starts from the conservative values and judges both modes: leave --hub and --hub-mode out");
  }
  if (!options.engine.policy.empty() || options.engine.expert_cache_fraction >= 0.0) {
    return absl::InvalidArgumentError(
        "--policy and --expert-cache-fraction are for one engine: give --policies and --capacities");
  }
  if (options.engine.device == "cpu") {
    const std::string& reason = options.engine.device_reason;
    return absl::InvalidArgumentError(absl::StrCat(
        "--policies are compared where experts move: give --device emulated, or cuda where there is "
        "a card; the device is the cpu",
        reason.empty() ? "" : absl::StrCat(" (", reason, ")")));
  }
  const std::vector<std::string> policies = absl::StrSplit(options.policies, ',');
  for (const std::string& policy : policies) {
    if (std::count(std::begin(kPolicies), std::end(kPolicies), policy) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--policies: no policy is called \"", policy,
                                                     "\": choose of ", absl::StrJoin(kPolicies, ", ")));
    }
  }
  COMOE_RETURN_IF_ERROR(CheckPlotPath(options.plot));
  EngineOptions any = options.engine;
  const bool hub = options.ablation || sweep || std::count(policies.begin(), policies.end(), "hub") > 0;
  any.policy = hub ? "hub" : policies.front();
  return CheckGivenFlags(any);
}

absl::Status BenchOffload(BenchOffloadOptions options) {
  COMOE_RETURN_IF_ERROR(CheckFlags(options));
  if (options.engine.device == "cuda") {
    options.engine.keep = std::make_shared<EngineKeep>();
  }
  std::string ids;
  COMOE_ASSIGN_OR_RETURN(const OffloadStudy study, ReadStudy(options, &ids));
  if (!options.sweeps.empty()) {
    return SweepOffload(options, study);
  }
  return options.ablation ? AblateOffload(options, study) : Compare(options, study, ids);
}

}  // namespace

void AddBenchOffloadCommand(CLI::App& bench, absl::Status& result) {
  auto options = std::make_shared<BenchOffloadOptions>();
  options->engine.device = "emulated";
  CLI::App* command =
      bench.add_subcommand("offload", "policies for experts at equal memory, on identical steps");
  AddEngineFlags(*command, options->engine);
  command
      ->add_option("--policies", options->policies,
                   absl::StrCat("compared with the first of them: ", absl::StrJoin(kPolicies, ", ")))
      ->capture_default_str();
  command->add_option("--batch", options->batches, "sequences of a step")->capture_default_str();
  command->add_option("--capacities", options->capacities, "shares of the experts in device memory")
      ->capture_default_str();
  command->add_option("--host-lanes", options->host_lanes,
                      "off,on: all points once without and once with experts that the CPU computes "
                      "(default: as --host-lane says)");
  AddTextFlags(*command, options->texts, "the model's routing_trace.npz or golden_nll.json");
  command->add_option("--steps", options->run.steps, "timed steps")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--warmup", options->run.warmup_steps, "steps before them")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--prompt", options->run.prompt, "tokens of the prompts whose first token is timed")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command
      ->add_option("--copy-computes", options->copy_computes,
                   "emulated: a copy takes as long as this many experts on the device (0: by the preset)")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--host-computes", options->host_computes,
                   "with it: an expert on the host takes as long as this many on the device")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--dense-computes", options->dense_computes,
                   "with it: every other kernel takes as long as this many experts on the device")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option(
          "--sweep", options->sweeps,
          "NAME=V1,V2,...: moves a parameter of the hub (docs/TUNING.md) from the conservative values, and "
          "says which flags are best here for either mode; several times for several parameters")
      ->allow_extra_args(false);
  command->add_flag("--ablation", options->ablation,
                    "what each part is worth: tiers, forecasts, overlap and host lane, added one after the "
                    "other and left out one at a time");
  command->add_option("--plot", options->plot, "also draw FILE.svg or FILE.png (gnuplot)");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &result] { result = BenchOffload(*options); });
}

}  // namespace comoe::cli
