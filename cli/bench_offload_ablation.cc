// `comoe bench offload --ablation`: what each part of the whole is worth, on the engine itself.
//
// Parts are added in the order in which the hub was built: experts that are kept in tiers (without forecasts,
// and with the device doing one thing after the other: copies and computations never overlap); forecasts, so
// that guesses are copied ahead; overlap, so that copies run beside computations; the host lane. What a part
// does depends on those that are there already, so each is also left out of the whole.
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench_offload.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/policy.h"

namespace comoe::cli {
namespace {

struct Parts {
  bool tiers = false;
  bool forecasts = false;
  bool overlap = false;
  bool host_lane = false;
};

struct Row {
  std::string system;  // a policy
  std::string name;    // what was added, or left out
  bool left_out = false;
  Parts parts;
  OffloadPoint point;
};

struct System {
  const char* policy;
  bool host_lane;  // has one
};
constexpr System kSystems[] = {{"simple", false}, {"hub", true}};

double Speed(const Row& row) { return row.point.run.tokens_per_second(); }
// The device does not compute: it waits for copies or the host.
double Idle(const Row& row) {
  return row.point.run.totals.wall > 0.0 ? 1.0 - row.point.run.totals.compute / row.point.run.totals.wall
                                         : 0.0;
}

EngineOptions With(const EngineOptions& given, const std::string& policy, const Parts& parts) {
  EngineOptions engine = given;
  engine.host_lane = parts.host_lane ? "on" : "off";
  if (!parts.tiers) {
    return engine;  // naive: it overlaps nothing by itself
  }
  engine.serial = parts.overlap ? device::EmulatedSerial::kNone : device::EmulatedSerial::kOneStream;
  if (!parts.forecasts && policy == "hub") {
    absl::StrAppend(&engine.hub_set, engine.hub_set.empty() ? "" : ",", "prefetch_depth=0,look_ahead=0");
  } else if (!parts.forecasts) {
    engine.make_director = [policy, lane = parts.host_lane](const routing::TierShape& shape) {
      routing::PolicyOptions options;
      options.host_lane = lane;
      options.prefetch_per_layer = 0;
      absl::StatusOr<routing::Policy> made = routing::MakePolicy(policy, shape, options);
      return made.ok() ? std::move(made->director) : nullptr;  // the shape is the engine's: it is good
    };
  }
  return engine;
}

class Ablation {
 public:
  Ablation(const BenchOffloadOptions& options, const OffloadStudy& study)
      : options_(options), study_(study) {}

  // naive, then for each system the parts one after the other, then the whole without each.
  absl::StatusOr<std::vector<Row>> Run(std::int64_t batch) {
    rows_.clear();
    COMOE_RETURN_IF_ERROR(Add({"naive", "naive", false, {}, {}}, batch));
    for (const System& system : kSystems) {
      const std::string name = system.policy;
      COMOE_RETURN_IF_ERROR(Add({name, "tiers", false, {true, false, false, false}, {}}, batch));
      COMOE_RETURN_IF_ERROR(Add({name, "+ forecasts", false, {true, true, false, false}, {}}, batch));
      COMOE_RETURN_IF_ERROR(Add({name, "+ overlap", false, {true, true, true, false}, {}}, batch));
      if (system.host_lane) {
        COMOE_RETURN_IF_ERROR(Add({name, "+ host lane", false, {true, true, true, true}, {}}, batch));
      }
      COMOE_RETURN_IF_ERROR(
          Add({name, "- forecasts", true, {true, false, true, system.host_lane}, {}}, batch));
      if (system.host_lane) {  // without: what came before overlap
        COMOE_RETURN_IF_ERROR(Add({name, "- overlap", true, {true, true, false, true}, {}}, batch));
      }
    }
    return std::move(rows_);
  }

 private:
  absl::Status Add(Row row, std::int64_t batch) {
    BenchOffloadOptions options = options_;
    options.engine = With(options_.engine, row.system, row.parts);
    COMOE_ASSIGN_OR_RETURN(row.point,
                           MeasureOffload(options, study_.texts, row.system, study_.shares.front(), batch));
    row.point.same_tokens = rows_.empty() || row.point.run.last_logits == rows_.front().point.run.last_logits;
    rows_.push_back(std::move(row));
    return absl::OkStatus();
  }

  const BenchOffloadOptions& options_;
  const OffloadStudy& study_;
  std::vector<Row> rows_;
};

// With what a row is compared: the row before it, naive for the first of a system, the whole for one that
// lacks a part.
struct Compared {
  double factor = 1.0;  // how much faster the part makes it
  double share = 0.0;   // of the logarithm of the whole gain, so that factors add up; 0 if there is none
};
const Row* Whole(const std::vector<Row>& rows, const std::string& system) {
  const Row* whole = nullptr;
  for (const Row& row : rows) {
    whole = row.system == system && !row.left_out ? &row : whole;
  }
  return whole;
}
Compared Compare(const std::vector<Row>& rows, std::size_t i) {
  const Row& row = rows[i];
  const Row& whole = *Whole(rows, row.system);
  Compared out;
  if (row.left_out) {
    out.factor = Ratio(Speed(whole), Speed(row));
    return out;
  }
  const Row& before = row.name == "tiers" ? rows.front() : rows[i > 0 ? i - 1 : 0];
  out.factor = Ratio(Speed(row), Speed(before));
  const double total = std::log(Ratio(Speed(whole), Speed(rows.front())));
  out.share = total > 0.0 && out.factor > 0.0 ? std::log(out.factor) / total : 0.0;
  return out;
}

void Print(const std::vector<Row>& rows) {
  std::printf("%-7s %-12s %9s %8s %9s %6s %6s %6s %6s %7s %6s %5s\n", "system", "part", "tokens/s", "x naive",
              "MB/token", "of", "hits", "host", "stall", "factor", "share", "same");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const OffloadRun& run = row.point.run;
    const api::OffloadTotals& t = run.totals;
    const Compared compared = Compare(rows, i);
    const bool first = i == 0;
    std::printf("%-7s %-12s %9.1f %8.2f %9.3f %5.0f%% %5.1f%% %5.1f%% %5.1f%% %7s %6s %5s\n",
                first || row.name == "tiers" ? row.system.c_str() : "", row.name.c_str(), Speed(row),
                Ratio(Speed(row), Speed(rows.front())), MegabytesPerToken(run),
                100.0 * Ratio(MegabytesPerToken(run), MegabytesPerToken(rows.front().point.run)),
                100.0 * HitShare(run),
                100.0 * Ratio(static_cast<double>(t.served_host),
                              static_cast<double>(t.served_hit + t.served_fetch + t.served_host)),
                100.0 * Idle(row), first ? "" : absl::StrFormat("%.3f", compared.factor).c_str(),
                first || row.left_out ? "" : absl::StrFormat("%.0f%%", 100.0 * compared.share).c_str(),
                row.point.same_tokens ? "yes" : "NO");
  }
}

nlohmann::json ToJson(const std::vector<Row>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const Compared compared = Compare(rows, i);
    nlohmann::json entry = {{"system", row.system},
                            {"part", row.name},
                            {"left_out", row.left_out},
                            {"batch", row.point.batch},
                            {"capacity", row.point.capacity},
                            {"tokens_per_second", Speed(row)},
                            {"speed_of_naive", Ratio(Speed(row), Speed(rows.front()))},
                            {"bytes_to_device", BytesToDevice(row.point.run.totals)},
                            {"tokens", row.point.run.tokens},
                            {"hit_share", HitShare(row.point.run)},
                            {"stall_share", Idle(row)},
                            {"factor", compared.factor},
                            {"same_tokens", row.point.same_tokens}};
    if (i > 0 && !row.left_out) {
      entry["share_of_gain"] = compared.share;
    }
    out.push_back(std::move(entry));
  }
  return out;
}

// A cluster for each system and batch.
void AddToPlot(const std::vector<Row>& rows, Plot* plot) {
  for (const System& system : kSystems) {
    const auto x = static_cast<double>(plot->clusters.size());
    plot->clusters.push_back(absl::StrCat(system.policy, ", batch ", rows.front().point.batch));
    std::size_t bar = 0;
    for (const Row& row : rows) {
      if (row.left_out || (row.system != system.policy && row.system != "naive")) {
        continue;
      }
      if (bar == plot->series.size()) {
        plot->series.push_back({row.name, {}});
      }
      plot->series[bar++].points.emplace_back(x, Ratio(Speed(row), Speed(rows.front())));
    }
  }
}

}  // namespace

absl::Status AblateOffload(const BenchOffloadOptions& options, const OffloadStudy& study) {
  const double share = study.shares.front();
  Plot plot;
  plot.title =
      absl::StrFormat("%s, %g %% of the experts on the device (emulated)", study.model, 100.0 * share);
  plot.y_label = "tokens/s over those of naive";
  nlohmann::json out = {{"model", study.model}, {"points", nlohmann::json::array()}};
  for (const std::int64_t batch : study.batches) {
    Ablation ablation(options, study);
    COMOE_ASSIGN_OR_RETURN(const std::vector<Row> rows, ablation.Run(batch));
    AddToPlot(rows, &plot);
    for (nlohmann::json& entry : ToJson(rows)) {
      out["points"].push_back(std::move(entry));
    }
    if (!options.json) {
      std::printf("%s%s, emulated: %g %% of the experts on the device, batch %d\n",
                  batch == study.batches.front() ? "" : "\n", study.model.c_str(), 100.0 * share,
                  static_cast<int>(batch));
      Print(rows);
    }
  }
  if (options.json) {
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf(
        "\n+: added to the row before; -: the whole without it. factor: what the part makes faster; share: "
        "of the gain over naive, by logarithms; stall: share of the time in which the device does not "
        "compute\n");
  }
  if (!options.plot.empty()) {
    COMOE_RETURN_IF_ERROR(WritePlots(options.plot, {plot}));
    std::fprintf(stderr, "plot: %s\n", options.plot.c_str());
  }
  return absl::OkStatus();
}

}  // namespace comoe::cli
