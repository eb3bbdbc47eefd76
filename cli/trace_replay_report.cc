// Results of `comoe trace replay` as tables, as JSON and as plots.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/trace.h"
#include "cli/trace_replay.h"

namespace comoe::cli {
namespace {

double Ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

// The point of the same capacity and batch of the first policy.
const ReplayPoint& Baseline(const std::vector<ReplayPoint>& points, const ReplayPoint& point) {
  return *std::find_if(points.begin(), points.end(), [&point](const ReplayPoint& other) {
    return other.capacity == point.capacity && other.batch == point.batch;
  });
}

void PrintPoints(const ReplayReport& report, bool seconds, std::uint64_t expert_bytes) {
  std::printf("%-8s %6s %5s %6s %6s %6s %9s %9s %7s %7s %7s %10s %6s %6s\n", "policy", "share", "batch",
              "hits", "late", "host", "copies/t", "MB/token", "wasted", "dropped", "stall",
              seconds ? "ms/token" : "computes/t", "link", "x");
  for (const ReplayPoint& p : report.points) {
    const routing::TimedTotals& t = p.totals;
    const auto rows = static_cast<double>(t.rows);
    const double per_token = static_cast<double>(t.copied()) / rows;
    const std::string megabytes =
        expert_bytes == 0 ? "-"
                          : absl::StrFormat("%.2f", per_token * static_cast<double>(expert_bytes) * 1e-6);
    std::printf(
        "%-8s %5.4g%% %5d %6.3f %5.1f%% %5.1f%% %9.2f %9s %6.1f%% %7lld %6.1f%% %10.3f %5.0f%% %6.2f\n",
        p.policy.c_str(), 100.0 * p.capacity, p.batch, t.hit_rate(),
        100.0 * Ratio(static_cast<double>(t.late_hits), static_cast<double>(t.lookups)),
        100.0 * Ratio(static_cast<double>(t.host), static_cast<double>(t.lookups)), per_token,
        megabytes.c_str(),
        100.0 * Ratio(static_cast<double>(t.guesses_wasted), static_cast<double>(t.copied())),
        static_cast<long long>(t.guesses_dropped), 100.0 * Ratio(t.stall_seconds, t.seconds),
        t.seconds / rows * (seconds ? 1e3 : 1.0), 100.0 * Ratio(t.link_seconds, t.seconds),
        Ratio(t.tokens_per_second(), Baseline(report.points, p).totals.tokens_per_second()));
  }
}

void PrintBounds(const ReplayReport& report) {
  std::printf("\nhit rates of eviction alone: decayed counts (online), optimal (Belady with bypass)\n");
  std::printf("%6s %5s %12s %6s %-18s %9s %9s %6s\n", "share", "batch", ".97 a layer", "best", "", "a layer",
              "pooled", "ratio");
  for (const EvictionBound& b : report.bounds) {
    const std::string which =
        absl::StrFormat("(%.2f, %s)", b.best_decay, b.best_per_layer ? "a layer" : "pooled");
    std::printf("%5.4g%% %5d %12.3f %6.3f %-18s %9.3f %9.3f %6.2f\n", 100.0 * b.capacity, b.batch,
                b.decayed_97, b.best_decayed, which.c_str(), b.optimal.optimal_per_layer,
                b.optimal.optimal_pooled, Ratio(b.best_decayed, b.optimal.optimal_pooled));
  }
}

}  // namespace

void PrintReplay(const ReplayReport& report, bool seconds, std::uint64_t expert_bytes) {
  PrintPoints(report, seconds, expert_bytes);
  PrintBounds(report);
  if (!report.forecasts.empty()) {
    std::printf("\n");
    PrintForecasts("forecasts for a row, batch 1: recall / precision", report.forecasts);
  }
}

nlohmann::json ReplayJson(const ReplayReport& report, bool seconds) {
  nlohmann::json out = {{"unit", seconds ? "seconds" : "device computes"}};
  for (const ReplayPoint& p : report.points) {
    const routing::TimedTotals& t = p.totals;
    out["points"].push_back(
        {{"policy", p.policy},
         {"capacity", p.capacity},
         {"batch", p.batch},
         {"steps", t.steps},
         {"rows", t.rows},
         {"lookups", t.lookups},
         {"hits", t.hits},
         {"hit_rate", t.hit_rate()},
         {"late_hits", t.late_hits},
         {"fetched", t.fetched},
         {"host", t.host},
         {"copied", t.copied()},
         {"guesses",
          {{"ordered", t.guesses},
           {"copied", t.guesses_copied},
           {"used", t.guesses_used},
           {"wasted", t.guesses_wasted},
           {"dropped", t.guesses_dropped}}},
         {"time", t.seconds},
         {"stall", t.stall_seconds},
         {"link_busy", t.link_seconds},
         {"speed_of_first_policy",
          Ratio(t.tokens_per_second(), Baseline(report.points, p).totals.tokens_per_second())}});
  }
  for (const EvictionBound& b : report.bounds) {
    out["oracle"].push_back({{"capacity", b.capacity},
                             {"batch", b.batch},
                             {"optimal_per_layer", b.optimal.optimal_per_layer},
                             {"optimal_pooled", b.optimal.optimal_pooled},
                             {"decayed_97_per_layer", b.decayed_97},
                             {"best_decayed", b.best_decayed},
                             {"best_decay", b.best_decay},
                             {"best_decayed_per_layer", b.best_per_layer}});
  }
  for (const routing::ForecastQuality& q : report.forecasts) {
    out["forecasts"].push_back({{"predictor", q.name},
                                {"ahead", q.distance},
                                {"widths", q.widths},
                                {"recall", q.recall},
                                {"precision", q.precision},
                                {"rows", q.rows}});
  }
  return out;
}

std::vector<Plot> ReplayPlots(const ReplayReport& report) {
  const bool by_batch = std::all_of(report.points.begin(), report.points.end(), [&](const ReplayPoint& p) {
    return p.capacity == report.points.front().capacity;
  });
  std::vector<Plot> plots;
  const auto add = [&](const std::string& what, const std::string& y_label, const ReplayPoint& p, double y) {
    const std::string title = by_batch ? what : absl::StrCat(what, ", batch ", p.batch);
    auto plot =
        std::find_if(plots.begin(), plots.end(), [&title](const Plot& made) { return made.title == title; });
    if (plot == plots.end()) {
      const std::string x_label = by_batch ? "batch" : "share of experts on the device, %";
      plot = plots.insert(plot, Plot{title, x_label, y_label, by_batch, {}});
    }
    auto found = std::find_if(plot->series.begin(), plot->series.end(),
                              [&p](const PlotSeries& series) { return series.name == p.policy; });
    if (found == plot->series.end()) {
      found = plot->series.insert(found, {p.policy, {}});
    }
    found->points.emplace_back(by_batch ? p.batch : 100.0 * p.capacity, y);
  };
  for (const ReplayPoint& p : report.points) {
    add("hit rate", "share of lookups", p, p.totals.hit_rate());
    add("speed", absl::StrCat("tokens/s over those of ", report.points.front().policy), p,
        Ratio(p.totals.tokens_per_second(), Baseline(report.points, p).totals.tokens_per_second()));
  }
  return plots;
}

}  // namespace comoe::cli
