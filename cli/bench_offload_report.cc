// Points of `comoe bench offload` as a table, as JSON and as plots.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench_offload.h"

namespace comoe::cli {

double Ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

std::uint64_t BytesToDevice(const api::OffloadTotals& totals) {
  return totals.copies[base::CopyDirection::kHostToDevice].bytes.Sum();
}

double MegabytesPerToken(const OffloadRun& run) {
  return Ratio(static_cast<double>(BytesToDevice(run.totals)), static_cast<double>(run.tokens)) * 1e-6;
}

double HitShare(const OffloadRun& run) {
  const api::OffloadTotals& t = run.totals;
  return Ratio(static_cast<double>(t.served_hit),
               static_cast<double>(t.served_hit + t.served_fetch + t.served_host));
}

double WastedShare(const OffloadRun& run) {
  return Ratio(static_cast<double>(run.totals.prefetch_wasted_bytes),
               static_cast<double>(BytesToDevice(run.totals)));
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

namespace {

double TierHitRate(const api::OffloadTotals& totals, base::Tier tier) {
  const api::TierTotals& sums = totals.tiers[tier];
  return Ratio(static_cast<double>(sums.hits), static_cast<double>(sums.hits + sums.misses));
}

// The first point of the same capacity and batch: what others are compared with.
const OffloadPoint& Baseline(const std::vector<OffloadPoint>& points, const OffloadPoint& point) {
  return *std::find_if(points.begin(), points.end(), [&point](const OffloadPoint& other) {
    return other.capacity == point.capacity && other.batch == point.batch;
  });
}

nlohmann::json PointJson(const std::vector<OffloadPoint>& points, const OffloadPoint& p) {
  const OffloadPoint& base = Baseline(points, p);
  const api::OffloadTotals& t = p.run.totals;
  nlohmann::json out = {
      {"policy", p.policy},
      {"capacity", p.capacity},
      {"batch", p.batch},
      {"host_lane", p.host_lane ? "on" : "off"},
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
      {"look_ahead_share", Ratio(t.compute_stages[base::StageKind::kLookahead], t.wall)},
      {"decisions",
       {{"observe_seconds", t.director_observe},
        {"plan_seconds", t.director_plan},
        {"share_of_real_time", Ratio(t.director_observe + t.director_plan, p.run.real_seconds)}}},
      {"real_seconds", p.run.real_seconds},
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

}  // namespace

void PrintOffloadTable(const std::vector<OffloadPoint>& points) {
  std::printf("%-15s %5s %5s %4s %9s %6s %9s %9s %9s %6s %8s %6s %7s %6s %6s %6s %9s %9s %5s\n", "policy",
              "share", "batch", "lane", "tokens/s", "x", "ITL p50", "p99 ms", "MB/token", "of", "wasted",
              "hits", "pinned", "host", "busy", "overl.", "TTFT cold", "warm ms", "same");
  for (const OffloadPoint& p : points) {
    const OffloadPoint& base = Baseline(points, p);
    const api::OffloadTotals& t = p.run.totals;
    const double served = static_cast<double>(t.served_hit + t.served_fetch + t.served_host);
    const auto h2d = static_cast<std::size_t>(base::CopyDirection::kHostToDevice);
    std::printf(
        "%-15s %4.0f%% %5d %4s %9.1f %6.2f %9.3f %9.3f %9.2f %5.0f%% %7.1f%% %5.1f%% %6.1f%% %5.1f%% %5.0f%% "
        "%5.0f%% "
        "%9.3f %9.3f %5s\n",
        p.policy.c_str(), 100.0 * p.capacity, static_cast<int>(p.batch), p.host_lane ? "on" : "off",
        p.run.tokens_per_second(), Ratio(p.run.tokens_per_second(), base.run.tokens_per_second()),
        1e3 * Quantile(p.run.step_seconds, 0.5), 1e3 * Quantile(p.run.step_seconds, 0.99),
        MegabytesPerToken(p.run),
        100.0 *
            Ratio(static_cast<double>(BytesToDevice(t)), static_cast<double>(BytesToDevice(base.run.totals))),
        100.0 * WastedShare(p.run), 100.0 * HitShare(p.run), 100.0 * TierHitRate(t, base::Tier::kPinned),
        100.0 * Ratio(static_cast<double>(t.served_host), served), 100.0 * Ratio(t.compute, t.wall),
        100.0 * Ratio(t.copy_overlapped.values[h2d], t.copy_busy.values[h2d]), 1e3 * p.run.first_token_cold,
        1e3 * p.run.first_token_warm, p.same_tokens ? "yes" : "NO");
  }
  std::printf(
      "\nstall, %% of the step's time, by what was waited for; look-ahead; real time of decisions:\n"
      "%-15s %5s %5s %4s",
      "policy", "share", "batch", "lane");
  for (std::size_t i = 0; i < base::kNumWaitEdges; ++i) {
    std::printf(" %13s", std::string(base::WaitEdgeName(static_cast<base::WaitEdge>(i))).c_str());
  }
  std::printf(" %9s %10s %9s %8s\n", "other", "look-ahead", "us a step", "of real");
  for (const OffloadPoint& p : points) {
    std::printf("%-15s %4.0f%% %5d %4s", p.policy.c_str(), 100.0 * p.capacity, static_cast<int>(p.batch),
                p.host_lane ? "on" : "off");
    for (const double stalled : p.run.totals.stalled.values) {
      std::printf(" %12.1f%%", 100.0 * Ratio(stalled, p.run.totals.wall));
    }
    const double decided = p.run.totals.director_observe + p.run.totals.director_plan;
    std::printf(" %8.1f%% %9.1f%% %9.1f %7.2f%%\n", 100.0 * Ratio(p.run.totals.other, p.run.totals.wall),
                100.0 * Ratio(p.run.totals.compute_stages[base::StageKind::kLookahead], p.run.totals.wall),
                1e6 * Ratio(decided, static_cast<double>(p.run.step_seconds.size())),
                100.0 * Ratio(decided, p.run.real_seconds));
  }
}

nlohmann::json OffloadJson(const std::vector<OffloadPoint>& points) {
  nlohmann::json out = nlohmann::json::array();
  for (const OffloadPoint& point : points) {
    out.push_back(PointJson(points, point));
  }
  return out;
}

std::vector<Plot> OffloadPlots(const std::vector<OffloadPoint>& points) {
  const bool by_batch = std::all_of(points.begin(), points.end(), [&](const OffloadPoint& p) {
    return p.capacity == points.front().capacity;
  });
  Plot speed{"", by_batch ? "batch" : "share of experts on the device, %", "tokens/s", by_batch, {}};
  speed.title = "tokens per second";
  Plot bytes = speed;
  bytes.title = "copied to the device";
  bytes.y_label = "MB/token";
  for (const OffloadPoint& p : points) {
    const std::string name = absl::StrCat(p.policy, by_batch ? "" : absl::StrCat(", batch ", p.batch),
                                          p.host_lane ? ", host lane" : "");
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
    add(bytes, MegabytesPerToken(p.run));
  }
  return {std::move(speed), std::move(bytes)};
}

}  // namespace comoe::cli
