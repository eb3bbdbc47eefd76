// `comoe bench offload`: policies at equal memory on identical steps.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/bench.h"
#include "cli/checkpoint_folder.h"
#include "cli/engine_options.h"
#include "cli/offload_plot.h"
#include "cli/offload_run.h"
#include "cli/progress.h"
#include "cli/routing_trace.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

struct BenchOffloadOptions {
  EngineOptions engine;
  std::string policies = "naive,static,lru,simple,hub";
  std::string batches = "1,8";
  std::string capacities = "0.25";
  std::string ids;
  OffloadRunOptions run;
  double copy_computes = 0.0;  // 0: by the preset's rates
  double host_computes = 6.0;  // with copy_computes
  double dense_computes = 0.1;
  std::vector<std::string> sweeps;  // "NAME=V1,V2,..."
  std::string plot;
  bool json = false;
};

struct Point {
  std::string policy;
  double capacity = 0.0;
  std::int64_t batch = 0;
  std::string tiers;  // as the engine describes them
  OffloadRun run;
  bool same_tokens = true;  // logits equal those of the first policy, to the bit
};

double Ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

std::uint64_t BytesToDevice(const api::OffloadTotals& totals) {
  return totals.copies[base::CopyDirection::kHostToDevice].bytes.Sum();
}

double HitRate(const api::OffloadTotals& totals, base::Tier tier) {
  const api::TierTotals& sums = totals.tiers[tier];
  return Ratio(static_cast<double>(sums.hits), static_cast<double>(sums.hits + sums.misses));
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// The first policy's point of the same capacity and batch: what others are compared with.
const Point& Baseline(const std::vector<Point>& points, const Point& point) {
  return *std::find_if(points.begin(), points.end(), [&point](const Point& other) {
    return other.capacity == point.capacity && other.batch == point.batch;
  });
}

// "naive-pageable" is naive with memory that the system does not lock.
EngineOptions OptionsFor(const BenchOffloadOptions& options, const std::string& policy, double capacity,
                         std::int64_t batch) {
  EngineOptions engine = options.engine;
  engine.policy = policy == "naive-pageable" ? "naive" : policy;
  engine.refuse_pinned = policy == "naive-pageable";
  engine.expert_cache_fraction = policy == "resident" ? 1.0 : capacity;
  engine.max_sequences = batch + 1;
  engine.max_batch_tokens = std::max<std::int64_t>(batch, options.run.prompt);
  engine.copy_computes = options.copy_computes;
  engine.host_computes = options.host_computes;
  engine.dense_computes = options.dense_computes;
  return engine;
}

absl::StatusOr<Point> Measure(const BenchOffloadOptions& options,
                              const std::vector<std::vector<base::TokenId>>& texts, const std::string& policy,
                              double capacity, std::int64_t batch) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle,
                         LoadEngine(OptionsFor(options, policy, capacity, batch)));
  OffloadRunOptions run = options.run;
  run.batch = batch;
  Progress progress(absl::StrFormat("%s, %.0f %%, batch %d", policy, 100.0 * capacity, batch),
                    options.engine.quiet);
  Point point{policy, capacity, batch, bundle->tiers_description(), {}, true};
  COMOE_ASSIGN_OR_RETURN(point.run, RunOffload(bundle->engine(), texts, run,
                                               [&progress](std::uint64_t done, std::uint64_t total) {
                                                 progress.Update(done, total, "steps");
                                               }));
  return point;
}

void PrintTable(const std::vector<Point>& points) {
  std::printf("%-15s %5s %5s %9s %6s %9s %9s %9s %6s %8s %6s %7s %6s %6s %6s %9s %9s %5s\n", "policy",
              "share", "batch", "tokens/s", "x", "ITL p50", "p99 ms", "MB/token", "of", "wasted", "hits",
              "pinned", "host", "busy", "overl.", "TTFT cold", "warm ms", "same");
  for (const Point& p : points) {
    const Point& base = Baseline(points, p);
    const api::OffloadTotals& t = p.run.totals;
    const auto tokens = static_cast<double>(p.run.tokens);
    const double served = static_cast<double>(t.served_hit + t.served_fetch + t.served_host);
    const auto h2d = static_cast<std::size_t>(base::CopyDirection::kHostToDevice);
    std::printf(
        "%-15s %4.0f%% %5d %9.1f %6.2f %9.3f %9.3f %9.2f %5.0f%% %7.1f%% %5.1f%% %6.1f%% %5.1f%% %5.0f%% "
        "%5.0f%% "
        "%9.3f %9.3f %5s\n",
        p.policy.c_str(), 100.0 * p.capacity, static_cast<int>(p.batch), p.run.tokens_per_second(),
        Ratio(p.run.tokens_per_second(), base.run.tokens_per_second()),
        1e3 * Quantile(p.run.step_seconds, 0.5), 1e3 * Quantile(p.run.step_seconds, 0.99),
        static_cast<double>(BytesToDevice(t)) / tokens * 1e-6,
        100.0 *
            Ratio(static_cast<double>(BytesToDevice(t)), static_cast<double>(BytesToDevice(base.run.totals))),
        100.0 * Ratio(static_cast<double>(t.prefetch_wasted_bytes), static_cast<double>(BytesToDevice(t))),
        100.0 * Ratio(static_cast<double>(t.served_hit), served), 100.0 * HitRate(t, base::Tier::kPinned),
        100.0 * Ratio(static_cast<double>(t.served_host), served), 100.0 * Ratio(t.compute, t.wall),
        100.0 * Ratio(t.copy_overlapped.values[h2d], t.copy_busy.values[h2d]), 1e3 * p.run.first_token_cold,
        1e3 * p.run.first_token_warm, p.same_tokens ? "yes" : "NO");
  }
  std::printf("\nstall, %% of the step's time, by what was waited for:\n%-15s %5s %5s", "policy", "share",
              "batch");
  for (std::size_t i = 0; i < base::kNumWaitEdges; ++i) {
    std::printf(" %13s", std::string(base::WaitEdgeName(static_cast<base::WaitEdge>(i))).c_str());
  }
  std::printf(" %9s\n", "other");
  for (const Point& p : points) {
    std::printf("%-15s %4.0f%% %5d", p.policy.c_str(), 100.0 * p.capacity, static_cast<int>(p.batch));
    for (const double stalled : p.run.totals.stalled.values) {
      std::printf(" %12.1f%%", 100.0 * Ratio(stalled, p.run.totals.wall));
    }
    std::printf(" %8.1f%%\n", 100.0 * Ratio(p.run.totals.other, p.run.totals.wall));
  }
}

nlohmann::json ToJson(const std::vector<Point>& points, const Point& p) {
  const Point& base = Baseline(points, p);
  const api::OffloadTotals& t = p.run.totals;
  nlohmann::json out = {
      {"policy", p.policy},
      {"capacity", p.capacity},
      {"batch", p.batch},
      {"tokens", p.run.tokens},
      {"seconds", p.run.seconds()},
      {"tokens_per_second", p.run.tokens_per_second()},
      {"speed_of_first_policy", Ratio(p.run.tokens_per_second(), base.run.tokens_per_second())},
      {"bytes_to_device", BytesToDevice(t)},
      {"bytes_of_first_policy",
       Ratio(static_cast<double>(BytesToDevice(t)), static_cast<double>(BytesToDevice(base.run.totals)))},
      {"inter_token_seconds",
       {{"p50", Quantile(p.run.step_seconds, 0.5)}, {"p99", Quantile(p.run.step_seconds, 0.99)}}},
      {"first_token_seconds", {{"cold", p.run.first_token_cold}, {"warm", p.run.first_token_warm}}},
      {"served", {{"hit", t.served_hit}, {"fetch", t.served_fetch}, {"host", t.served_host}}},
      {"prefetch_bytes", {{"used", t.prefetch_used_bytes}, {"wasted", t.prefetch_wasted_bytes}}},
      {"unpinned_copies", t.unpinned_copies},
      {"device_busy_share", Ratio(t.compute, t.wall)},
      {"other_seconds", t.other},
      {"host_lane_seconds", t.host_lane},
      {"same_tokens", p.same_tokens}};
  for (const base::Tier tier : base::kTiers) {
    out["tiers"][std::string(base::TierName(tier))] = {{"hits", t.tiers[tier].hits},
                                                       {"misses", t.tiers[tier].misses},
                                                       {"slots", t.tiers[tier].slots},
                                                       {"capacity_bytes", t.tiers[tier].capacity_bytes}};
  }
  for (std::size_t i = 0; i < base::kNumWaitEdges; ++i) {
    out["stall_seconds"][std::string(base::WaitEdgeName(static_cast<base::WaitEdge>(i)))] =
        t.stalled.values[i];
  }
  for (std::size_t d = 0; d < base::kNumCopyDirections; ++d) {
    nlohmann::json& direction =
        out["copies"][std::string(base::CopyDirectionName(static_cast<base::CopyDirection>(d)))];
    direction = {{"copies", t.copies.values[d].copies},
                 {"busy_seconds", t.copy_busy.values[d]},
                 {"overlapped_seconds", t.copy_overlapped.values[d]}};
    for (std::size_t r = 0; r < base::kNumCopyReasons; ++r) {
      direction["bytes"][std::string(base::CopyReasonName(static_cast<base::CopyReason>(r)))] =
          t.copies.values[d].bytes.values[r];
    }
  }
  return out;
}

// Tokens per second and bytes a token over the capacity (or, with one capacity, over the batch).
std::vector<Plot> MakePlots(const std::vector<Point>& points) {
  const bool by_batch = std::all_of(points.begin(), points.end(),
                                    [&](const Point& p) { return p.capacity == points.front().capacity; });
  Plot speed{"", by_batch ? "batch" : "share of experts on the device, %", "tokens/s", by_batch, {}};
  speed.title = "tokens per second";
  Plot bytes = speed;
  bytes.title = "copied to the device";
  bytes.y_label = "MB/token";
  for (const Point& p : points) {
    const std::string name = by_batch ? p.policy : absl::StrCat(p.policy, ", batch ", p.batch);
    const double x = by_batch ? static_cast<double>(p.batch) : 100.0 * p.capacity;
    const auto add = [&](Plot& plot, double y) {
      auto found = std::find_if(plot.series.begin(), plot.series.end(),
                                [&name](const PlotSeries& series) { return series.name == name; });
      if (found == plot.series.end()) {
        found = plot.series.insert(found, {name, {}});
      }
      found->points.emplace_back(x, y);
    };
    add(speed, p.run.tokens_per_second());
    add(bytes, static_cast<double>(BytesToDevice(p.run.totals)) / static_cast<double>(p.run.tokens) * 1e-6);
  }
  return {std::move(speed), std::move(bytes)};
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

std::string DefaultIds(const std::string& model) {
  for (const char* name : {"/routing_trace.npz", "/golden_nll.json"}) {
    if (IsThere(model + name)) {
      return model + name;
    }
  }
  return "";
}

struct SweepPoint {
  double value = 0.0;
  Point point;
};

double Wasted(const OffloadRun& run) {
  return Ratio(static_cast<double>(run.totals.prefetch_wasted_bytes),
               static_cast<double>(BytesToDevice(run.totals)));
}

// Of one parameter, the value with the lowest p99 between tokens at the smallest batch, and that with the
// most tokens a second at the largest.
struct BestValues {
  double latency = 0.0;
  double throughput = 0.0;
};
BestValues FindBest(const std::vector<SweepPoint>& points, std::int64_t smallest, std::int64_t largest) {
  BestValues best;
  double lowest = std::numeric_limits<double>::infinity();
  double highest = 0.0;
  for (const SweepPoint& p : points) {
    const double p99 = Quantile(p.point.run.step_seconds, 0.99);
    if (p.point.batch == smallest && p99 < lowest) {
      lowest = p99;
      best.latency = p.value;
    }
    if (p.point.batch == largest && p.point.run.tokens_per_second() > highest) {
      highest = p.point.run.tokens_per_second();
      best.throughput = p.value;
    }
  }
  return best;
}

// The hub with one parameter after the other moved, all others at their conservative values.
absl::Status Sweep(const BenchOffloadOptions& options, const std::vector<std::vector<base::TokenId>>& texts,
                   const std::vector<std::int64_t>& batches, double share) {
  const auto [smallest, largest] = std::minmax_element(batches.begin(), batches.end());
  std::string latency, throughput;
  std::vector<Plot> plots;
  nlohmann::json out = nlohmann::json::array();
  for (const std::string& sweep : options.sweeps) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(sweep, absl::MaxSplits('=', 1));
    std::vector<SweepPoint> points;
    Plot plot{parts.first, parts.first, "tokens/s", false, {}};
    for (const std::int64_t batch : batches) {
      PlotSeries& series = plot.series.emplace_back(PlotSeries{absl::StrCat("batch ", batch), {}});
      for (const absl::string_view text : absl::StrSplit(parts.second, ',')) {
        BenchOffloadOptions moved = options;
        moved.engine.hub_mode = "conservative";
        moved.engine.hub_set = absl::StrCat(parts.first, "=", text);
        SweepPoint& p = points.emplace_back();
        if (!absl::SimpleAtod(text, &p.value)) {
          return absl::InvalidArgumentError(absl::StrCat("--sweep ", sweep, ": '", text, "' is no number"));
        }
        COMOE_ASSIGN_OR_RETURN(p.point, Measure(moved, texts, "hub", share, batch));
        series.points.emplace_back(p.value, p.point.run.tokens_per_second());
      }
    }
    if (!options.json) {
      std::printf("%-22s %12s %5s %10s %10s %10s %8s %8s\n", "parameter", "value", "batch", "tokens/s",
                  "p50 ms", "p99 ms", "MB/token", "wasted");
    }
    for (const SweepPoint& p : points) {
      const OffloadRun& run = p.point.run;
      const double mb =
          static_cast<double>(BytesToDevice(run.totals)) / static_cast<double>(run.tokens) * 1e-6;
      out.push_back({{"parameter", parts.first},
                     {"value", p.value},
                     {"batch", p.point.batch},
                     {"tokens_per_second", run.tokens_per_second()},
                     {"inter_token_p99_seconds", Quantile(run.step_seconds, 0.99)},
                     {"wasted_share", Wasted(run)}});
      if (!options.json) {
        std::printf("%-22s %12g %5d %10.1f %10.3f %10.3f %8.2f %7.1f%%\n", parts.first.c_str(), p.value,
                    static_cast<int>(p.point.batch), run.tokens_per_second(),
                    1e3 * Quantile(run.step_seconds, 0.5), 1e3 * Quantile(run.step_seconds, 0.99), mb,
                    100.0 * Wasted(run));
      }
    }
    const BestValues best = FindBest(points, *smallest, *largest);
    absl::StrAppend(&latency, latency.empty() ? "" : ",", parts.first, "=", best.latency);
    absl::StrAppend(&throughput, throughput.empty() ? "" : ",", parts.first, "=", best.throughput);
    plots.push_back(std::move(plot));
  }
  if (options.json) {
    std::printf(
        "%s\n",
        nlohmann::json({{"points", out}, {"latency", latency}, {"throughput", throughput}}).dump(2).c_str());
  } else {
    std::printf(
        "\nbest here for latency:    --policy hub --hub-mode latency --hub %s\nbest here for throughput: "
        "--policy "
        "hub --hub-mode throughput --hub %s\n",
        latency.c_str(), throughput.c_str());
  }
  return options.plot.empty() ? absl::OkStatus() : WritePlots(options.plot, plots);
}

absl::Status BenchOffload(const BenchOffloadOptions& options) {
  const std::vector<std::string> policies = absl::StrSplit(options.policies, ',');
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> batches,
                         ParseList("--batch", options.batches, 1, 1024));
  COMOE_ASSIGN_OR_RETURN(const std::vector<double> shares, ParseShares(options.capacities));
  COMOE_ASSIGN_OR_RETURN(const CheckpointFolder folder,
                         OpenCheckpoint(options.engine.model, options.engine.widen));
  const std::string ids = options.ids.empty() ? DefaultIds(options.engine.model) : options.ids;
  if (ids.empty()) {
    return absl::InvalidArgumentError(
        "which text? Give --force-ids FILE: a routing trace (.npz) or JSON {\"ids\": [[id, ...], ...]}; what "
        "a small "
        "model says by itself loops, and its routing with it");
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::vector<base::TokenId>> texts,
                         ReadForcedIds(ids, static_cast<std::int32_t>(folder.config.vocab_size)));
  if (!options.sweeps.empty()) {
    return Sweep(options, texts, batches, shares.front());
  }
  std::vector<Point> points;
  for (const double share : shares) {
    for (const std::int64_t batch : batches) {
      for (const std::string& policy : policies) {
        COMOE_ASSIGN_OR_RETURN(Point point, Measure(options, texts, policy, share, batch));
        points.push_back(std::move(point));
        points.back().same_tokens =
            points.back().run.last_logits == Baseline(points, points.back()).run.last_logits;
      }
    }
  }
  if (options.json) {
    nlohmann::json out = {{"model", folder.name}, {"device", options.engine.device}, {"ids", ids}};
    for (const Point& point : points) {
      out["points"].push_back(ToJson(points, point));
    }
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf("%s, %s\n%s\n", folder.name.c_str(), options.engine.device.c_str(),
                points.back().tiers.c_str());
    PrintTable(points);
  }
  if (!options.plot.empty()) {
    COMOE_RETURN_IF_ERROR(WritePlots(options.plot, MakePlots(points)));
    std::fprintf(stderr, "plot: %s\n", options.plot.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddBenchOffloadCommand(CLI::App& bench, absl::Status& result) {
  auto options = std::make_shared<BenchOffloadOptions>();
  options->engine.device = "emulated";
  CLI::App* command =
      bench.add_subcommand("offload", "policies for experts at equal memory, on identical steps");
  AddEngineFlags(*command, options->engine);
  command
      ->add_option(
          "--policies", options->policies,
          "compared with the first of them: naive, naive-pageable, static, lru, simple, hub, resident")
      ->capture_default_str();
  command->add_option("--batch", options->batches, "sequences of a step")->capture_default_str();
  command->add_option("--capacities", options->capacities, "shares of the experts in device memory")
      ->capture_default_str();
  command->add_option(
      "--force-ids", options->ids,
      "texts: a routing trace (.npz) or JSON {\"ids\": [[id, ...], ...]} (default: the model's)");
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
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--host-computes", options->host_computes,
                   "with it: an expert on the host takes as long as this many on the device")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--dense-computes", options->dense_computes,
                   "with it: every other kernel takes as long as this many experts on the device")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option(
          "--sweep", options->sweeps,
          "NAME=V1,V2,...: moves a parameter of the hub (docs/TUNING.md) from the conservative values, and "
          "says which flags are best here for either mode; several times for several parameters")
      ->allow_extra_args(false);
  command->add_option("--plot", options->plot, "also draw FILE.svg or FILE.png (gnuplot)");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &result] { result = BenchOffload(*options); });
}

}  // namespace comoe::cli
