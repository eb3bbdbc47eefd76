// What the runs of `comoe trace study` say.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/trace_study.h"

namespace comoe::cli {
namespace {

// Less than this is no gain: the model of time is no better than that.
constexpr double kLeastGain = 0.01;
constexpr double kLeastVisible = 0.001;

// The run of the same link with which another is compared; null: none.
const StudyRun* Find(const std::vector<StudyRun>& runs, const std::string& name, double copy, double x) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const StudyRun& run) {
    return run.name == name && run.copy_computes == copy && run.x == x;
  });
  return found == runs.end() ? nullptr : &*found;
}

// How much faster than another; 0.1: by a tenth.
double Gain(const StudyRun& run, const StudyRun& over) {
  return run.totals.seconds > 0.0 ? over.time_per_token() / run.time_per_token() - 1.0 : 0.0;
}

std::string Percent(double x) { return absl::StrFormat("%g %%", x); }

std::string Label(StudyKind kind, double x) {
  if (x == kNaiveRun) {
    return "-";
  }
  if (x == kPrefetchOff) {
    return "off";
  }
  return kind == StudyKind::kAccuracy ? absl::StrFormat("%g%%", x) : absl::StrFormat("%g", x);
}

void PrintKnee(StudyKind kind, const Knee& knee) {
  std::printf("%s, copy = %g computes: ", knee.name.c_str(), knee.copy_computes);
  if (kind == StudyKind::kWidth) {
    std::printf("%s\n", knee.fastest < 0.0
                            ? "fastest without prefetch"
                            : absl::StrFormat("fastest with %g experts a layer, %.1f %% faster than without",
                                              knee.fastest, 100.0 * knee.fastest_gain)
                                  .c_str());
  } else if (knee.pays_from < 0.0) {
    std::printf("no knee, prefetch does not pay even at 100 %% (gain %.1f %%)\n", 100.0 * knee.gain);
  } else {
    std::printf("knee %s: from there on prefetch pays; half of the gain at 100 %% (%.1f %%) from %s on\n",
                Percent(knee.pays_from).c_str(), 100.0 * knee.gain, Percent(knee.half_from).c_str());
  }
}

}  // namespace

std::vector<Knee> FindKnees(const std::vector<StudyRun>& runs) {
  std::vector<Knee> knees;
  for (const StudyRun& off : runs) {
    if (off.x != kPrefetchOff) {
      continue;
    }
    Knee knee;
    knee.name = off.name;
    knee.copy_computes = off.copy_computes;
    bool pays = true;
    bool half = true;
    const StudyRun* largest = nullptr;
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {  // x descends
      if (run->name != off.name || run->copy_computes != off.copy_computes || run->x < 0.0) {
        continue;
      }
      const double gain = Gain(*run, off);
      largest = largest == nullptr ? &*run : largest;
      knee.gain = Gain(*largest, off);
      pays = pays && gain > kLeastGain;
      half = half && knee.gain > kLeastGain && gain >= 0.5 * knee.gain;
      knee.pays_from = pays ? run->x : knee.pays_from;
      knee.half_from = half ? run->x : knee.half_from;
      if (gain > kLeastVisible && gain >= knee.fastest_gain) {  // among equals the narrowest
        knee.fastest = run->x;
        knee.fastest_gain = gain;
      }
    }
    knees.push_back(knee);
  }
  return knees;
}

void PrintStudy(StudyKind kind, const std::vector<StudyRun>& runs) {
  const bool accuracy = kind == StudyKind::kAccuracy;
  std::printf("%-10s %6s %9s %11s %8s %8s %6s %6s %9s %7s\n", accuracy ? "policy" : "predictor", "copy",
              accuracy ? "accuracy" : "width", "computes/t", "x naive", "x off", "hits", "late", "copies/t",
              "wasted");
  for (const StudyRun& run : runs) {
    const routing::TimedTotals& t = run.totals;
    const StudyRun* naive = Find(runs, "naive", run.copy_computes, kNaiveRun);
    const StudyRun* off = Find(runs, run.name, run.copy_computes, kPrefetchOff);
    const auto lookups = static_cast<double>(std::max<std::int64_t>(t.lookups, 1));
    std::printf("%-10s %6g %9s %11.2f %8.2f %8s %6.3f %5.1f%% %9.2f %6.1f%%\n", run.name.c_str(),
                run.copy_computes, Label(kind, run.x).c_str(), run.time_per_token(),
                naive == nullptr ? 0.0 : 1.0 + Gain(run, *naive),
                off == nullptr ? "-" : absl::StrFormat("%.3f", 1.0 + Gain(run, *off)).c_str(), t.hit_rate(),
                100.0 * static_cast<double>(t.late_hits) / lookups,
                static_cast<double>(t.copied()) / static_cast<double>(std::max<std::int64_t>(t.rows, 1)),
                100.0 * static_cast<double>(t.guesses_wasted) /
                    static_cast<double>(std::max<std::int64_t>(t.copied(), 1)));
  }
  for (const Knee& knee : FindKnees(runs)) {
    PrintKnee(kind, knee);
  }
}

nlohmann::json StudyJson(StudyKind kind, const std::vector<StudyRun>& runs) {
  const bool accuracy = kind == StudyKind::kAccuracy;
  const auto or_null = [](double x) { return x < 0.0 ? nlohmann::json(nullptr) : nlohmann::json(x); };
  nlohmann::json out;
  for (const StudyRun& run : runs) {
    nlohmann::json entry = {{"name", run.name},
                            {"copy_computes", run.copy_computes},
                            {"computes_per_token", run.time_per_token()},
                            {"hit_rate", run.totals.hit_rate()},
                            {"copied", run.totals.copied()},
                            {"wasted", run.totals.guesses_wasted},
                            {"rows", run.totals.rows},
                            {"prefetch", run.x >= 0.0}};
    if (run.x >= 0.0) {
      entry[accuracy ? "accuracy_percent" : "width"] = run.x;
    }
    out["runs"].push_back(std::move(entry));
  }
  for (const Knee& knee : FindKnees(runs)) {
    nlohmann::json entry = {{"name", knee.name}, {"copy_computes", knee.copy_computes}};
    if (accuracy) {
      entry["knee_percent"] = or_null(knee.pays_from);
      entry["half_gain_percent"] = or_null(knee.half_from);
      entry["gain_at_100"] = knee.gain;
    } else {
      entry["fastest_width"] = or_null(knee.fastest);
      entry["fastest_gain"] = knee.fastest_gain;
    }
    out["knees"].push_back(std::move(entry));
  }
  return out;
}

std::vector<Plot> StudyPlots(StudyKind kind, const std::vector<StudyRun>& runs) {
  const bool accuracy = kind == StudyKind::kAccuracy;
  std::vector<Plot> plots;
  for (const StudyRun& run : runs) {
    if (run.x == kNaiveRun) {
      Plot& plot = plots.emplace_back();
      plot.title = absl::StrFormat("a copy takes %g computations of an expert", run.copy_computes);
      plot.x_label = accuracy ? "forced accuracy, %" : "experts prefetched a layer";
      plot.y_label = "speed over that without prefetch";
      plot.log_x = !accuracy;
      plot.y_from_0 = false;
      plot.level = 1.0;
      for (const Knee& knee : FindKnees(runs)) {
        if (accuracy && knee.copy_computes == run.copy_computes && knee.pays_from >= 0.0) {
          plot.marks.emplace_back(knee.pays_from, absl::StrCat("knee of ", knee.name));
        }
      }
      continue;
    }
    const StudyRun* off = Find(runs, run.name, run.copy_computes, kPrefetchOff);
    if (run.x < 0.0 || off == nullptr) {
      continue;
    }
    std::vector<PlotSeries>& series = plots.back().series;
    if (series.empty() || series.back().name != run.name) {
      series.push_back({run.name, {}});
    }
    series.back().points.emplace_back(run.x, 1.0 + Gain(run, *off));
  }
  return plots;
}

}  // namespace comoe::cli
