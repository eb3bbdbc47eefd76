// `comoe trace study`: how good and how wide forecasts have to be for prefetch to pay.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/offload_plot.h"
#include "cli/progress.h"
#include "cli/trace.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/study_director.h"
#include "scheduler/routing/trace_predictors.h"

namespace comoe::cli {
namespace {

constexpr std::uint64_t kSeed = 20261129;
constexpr int kLowestPercent = 50;
constexpr int kPercentStep = 5;
// Slower by less than this is not slower: the model is no better than that.
constexpr double kTolerance = 1e-3;

using Steps = std::vector<std::vector<routing::ReplayRow>>;

struct StudyFlags {
  std::string trace;
  std::string model;
  std::string policies = "simple";
  std::string predictors = "window,mix";
  std::string links = "4,12";
  double capacity = 0.25;
  std::int32_t batch = 1;
  std::int64_t steps = 2000;
  RateFlags rates;
  std::string plot;
  bool json = false;
  bool quiet = false;
};

// A run of a study. `x`: accuracy in percent, or width in experts; -1: prefetch off; -2: naive.
struct Run {
  std::string name;
  double copy_computes = 0.0;
  double x = 0.0;
  routing::TimedTotals totals;
};
constexpr double kPrefetchOff = -1.0;
constexpr double kNaive = -2.0;

class Study {
 public:
  Study(const StudyFlags& flags, const routing::Trace& trace)
      : flags_(flags),
        trace_(trace),
        steps_(routing::LockstepRows(trace, SplitInHalves(trace).judged, flags.batch,
                                     flags.steps > 0 ? flags.steps : std::int64_t{1} << 40)),
        shape_(trace.Shape(std::max(
            1, static_cast<std::int32_t>(
                   flags.capacity * trace.header.num_moe_layers() * trace.header.num_experts + 1e-9)))) {}

  absl::StatusOr<std::vector<Run>> Accuracy() {
    COMOE_RETURN_IF_ERROR(Prepare());
    const std::vector<std::string> policies = absl::StrSplit(flags_.policies, ',');
    std::vector<Run> runs;
    for (const double copy : copies_) {
      COMOE_RETURN_IF_ERROR(AddNaive(copy, &runs));
      for (const std::string& policy : policies) {
        COMOE_RETURN_IF_ERROR(AddForced(policy, copy, kPrefetchOff, &runs));
        for (int percent = kLowestPercent; percent <= 100; percent += kPercentStep) {
          COMOE_RETURN_IF_ERROR(AddForced(policy, copy, percent, &runs));
        }
      }
    }
    return runs;
  }

  absl::StatusOr<std::vector<Run>> Width() {
    COMOE_RETURN_IF_ERROR(Prepare());
    const std::int32_t num_experts = trace_.header.num_experts;
    const std::vector<std::string> names = absl::StrSplit(flags_.predictors, ',');
    std::vector<Run> runs;
    for (const double copy : copies_) {
      COMOE_RETURN_IF_ERROR(AddNaive(copy, &runs));
      for (const std::string& name : names) {
        const std::unique_ptr<api::ExpertDirector> off = routing::MakeStudyDirector(shape_, Options(), {});
        COMOE_RETURN_IF_ERROR(Add({name, copy, kPrefetchOff, {}}, {}, *off, &runs));
        for (std::int32_t width = trace_.header.experts_per_token;;
             width = std::min(2 * width, num_experts)) {
          COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<routing::RowPredictor> predictor,
                                 routing::MakeTracePredictor(name, trace_.Shape(0)));
          const std::unique_ptr<api::ExpertDirector> director = routing::MakeStudyDirector(
              shape_, Options(),
              routing::PredictedGuesses(trace_, steps_, routing::RecordedLookahead(trace_), width,
                                        predictor.get()));
          COMOE_RETURN_IF_ERROR(Add({name, copy, static_cast<double>(width), {}}, {}, *director, &runs));
          if (width == num_experts) {
            break;
          }
        }
      }
    }
    return runs;
  }

 private:
  absl::Status Prepare() {
    if (steps_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--batch ", flags_.batch, " needs as many sequences in the second half of the trace"));
    }
    if (!flags_.rates.link.empty()) {
      return absl::InvalidArgumentError("a study compares links: give --links C1,C2, in computes a copy");
    }
    for (const absl::string_view part : absl::StrSplit(flags_.links, ',')) {
      double copy = 0.0;
      if (!absl::SimpleAtod(part, &copy) || !(copy > 0.0 && copy <= 1e6)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--links: '", part, "' is no number of computes above 0"));
      }
      copies_.push_back(copy);
    }
    return absl::OkStatus();
  }

  routing::PolicyOptions Options() const {
    routing::PolicyOptions options;
    options.host_lane = flags_.rates.host_lane;
    options.expert_bytes = trace_.header.expert_bytes;
    return options;
  }

  absl::Status AddNaive(double copy, std::vector<Run>* runs) {
    COMOE_ASSIGN_OR_RETURN(const routing::Policy naive, routing::MakePolicy("naive", shape_, Options()));
    return Add({"naive", copy, kNaive, {}}, {}, *naive.director, runs);
  }

  // `simple` gets its guesses from outside; any other policy reads forced look-ahead scores.
  absl::Status AddForced(const std::string& policy, double copy, double percent, std::vector<Run>* runs) {
    const bool off = percent == kPrefetchOff;
    if (policy == "simple") {
      routing::GuessSource guesses;
      if (!off) {
        guesses = routing::ForcedGuesses(trace_, steps_, percent / 100.0, kSeed);
      }
      const std::unique_ptr<api::ExpertDirector> director =
          routing::MakeStudyDirector(shape_, Options(), std::move(guesses));
      return Add({policy, copy, percent, {}}, {}, *director, runs);
    }
    routing::PolicyOptions options = Options();
    if (off) {
      options.prefetch_per_layer = 0;
      options.hub.prefetch_depth = 0;
    }
    COMOE_ASSIGN_OR_RETURN(const routing::Policy made, routing::MakePolicy(policy, shape_, options));
    return Add({policy, copy, percent, {}},
               off ? routing::LookaheadSource() : routing::ForcedLookahead(trace_, percent / 100.0, kSeed),
               *made.director, runs);
  }

  absl::Status Add(Run run, const routing::LookaheadSource& lookahead, api::ExpertDirector& director,
                   std::vector<Run>* runs) {
    RateFlags flags = flags_.rates;
    flags.copy_computes = run.copy_computes;
    COMOE_ASSIGN_OR_RETURN(const routing::ReplayRates rates, MakeRates(flags, trace_));
    Progress progress(absl::StrFormat("%s, copy = %g computes, %g", run.name, run.copy_computes, run.x),
                      flags_.quiet);
    routing::TimedReplayer replayer(trace_, shape_, rates, lookahead, &director);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      COMOE_RETURN_IF_ERROR(base::Annotate(replayer.Step(steps_[i]), run.name));
      if (i % 64 == 0) {
        progress.Update(i, steps_.size(), "steps");
      }
    }
    run.totals = replayer.totals();
    runs->push_back(std::move(run));
    return absl::OkStatus();
  }

  const StudyFlags& flags_;
  const routing::Trace& trace_;
  const Steps steps_;
  const routing::TierShape shape_;
  std::vector<double> copies_;
};

double TimePerToken(const Run& run) {
  return run.totals.rows > 0 ? run.totals.seconds / static_cast<double>(run.totals.rows) : 0.0;
}

// The run of the same link with which another is compared; null: none.
const Run* Find(const std::vector<Run>& runs, const std::string& name, double copy, double x) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const Run& run) {
    return run.name == name && run.copy_computes == copy && run.x == x;
  });
  return found == runs.end() ? nullptr : &*found;
}

bool NotSlower(const Run& run, const Run& off) {
  return TimePerToken(run) <= TimePerToken(off) * (1.0 + kTolerance);
}

struct Knee {
  std::string name;
  double copy_computes = 0.0;
  double percent = -1.0;  // the smallest from which on prefetch is not slower than none; -1: never
  double best_x = 0.0;    // the fastest
};

std::vector<Knee> FindKnees(const std::vector<Run>& runs) {
  std::vector<Knee> knees;
  for (const Run& off : runs) {
    if (off.x != kPrefetchOff) {
      continue;
    }
    Knee knee{off.name, off.copy_computes, -1.0, kPrefetchOff};
    const Run* fastest = &off;
    bool holds = true;
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      if (run->name != off.name || run->copy_computes != off.copy_computes || run->x < 0.0) {
        continue;
      }
      holds = holds && NotSlower(*run, off);
      knee.percent = holds ? run->x : knee.percent;
      fastest = TimePerToken(*run) < TimePerToken(*fastest) ? &*run : fastest;
    }
    knee.best_x = fastest->x;
    knees.push_back(knee);
  }
  return knees;
}

std::string Label(const Run& run, bool accuracy) {
  if (run.x == kNaive) {
    return "-";
  }
  if (run.x == kPrefetchOff) {
    return "off";
  }
  return accuracy ? absl::StrFormat("%g%%", run.x) : absl::StrFormat("%g", run.x);
}

void Print(const std::vector<Run>& runs, bool accuracy) {
  std::printf("%-10s %6s %9s %11s %8s %8s %6s %6s %9s %7s\n", accuracy ? "policy" : "predictor", "copy",
              accuracy ? "accuracy" : "width", "computes/t", "x naive", "x off", "hits", "late", "copies/t",
              "wasted");
  for (const Run& run : runs) {
    const routing::TimedTotals& t = run.totals;
    const Run* naive = Find(runs, "naive", run.copy_computes, kNaive);
    const Run* off = Find(runs, run.name, run.copy_computes, kPrefetchOff);
    const auto lookups = static_cast<double>(std::max<std::int64_t>(t.lookups, 1));
    std::printf(
        "%-10s %6g %9s %11.2f %8.2f %8s %6.3f %5.1f%% %9.2f %6.1f%%\n", run.name.c_str(), run.copy_computes,
        Label(run, accuracy).c_str(), TimePerToken(run),
        naive == nullptr ? 0.0 : TimePerToken(*naive) / TimePerToken(run),
        off == nullptr ? "-" : absl::StrFormat("%.3f", TimePerToken(*off) / TimePerToken(run)).c_str(),
        t.hit_rate(), 100.0 * static_cast<double>(t.late_hits) / lookups,
        static_cast<double>(t.copied()) / static_cast<double>(std::max<std::int64_t>(t.rows, 1)),
        100.0 * static_cast<double>(t.guesses_wasted) /
            static_cast<double>(std::max<std::int64_t>(t.copied(), 1)));
  }
  for (const Knee& knee : FindKnees(runs)) {
    if (!accuracy) {
      std::printf("%s, copy = %g computes: fastest %s\n", knee.name.c_str(), knee.copy_computes,
                  knee.best_x < 0 ? "without prefetch"
                                  : absl::StrFormat("with %g experts a layer", knee.best_x).c_str());
    } else if (knee.percent < 0) {
      std::printf("knee, %s, copy = %g computes: none, prefetch is slower even at 100 %%\n",
                  knee.name.c_str(), knee.copy_computes);
    } else {
      std::printf("knee, %s, copy = %g computes: from %g %% on prefetch is not slower than none%s\n",
                  knee.name.c_str(), knee.copy_computes, knee.percent,
                  knee.percent <= kLowestPercent ? " (the lowest tried)" : "");
    }
  }
}

nlohmann::json ToJson(const std::vector<Run>& runs, bool accuracy) {
  nlohmann::json out;
  for (const Run& run : runs) {
    nlohmann::json entry = {{"name", run.name},
                            {"copy_computes", run.copy_computes},
                            {"computes_per_token", TimePerToken(run)},
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
      entry["knee_percent"] = knee.percent < 0.0 ? nlohmann::json(nullptr) : nlohmann::json(knee.percent);
    } else {
      entry["fastest_width"] = knee.best_x < 0.0 ? nlohmann::json(nullptr) : nlohmann::json(knee.best_x);
    }
    out["knees"].push_back(std::move(entry));
  }
  return out;
}

std::vector<Plot> MakePlots(const std::vector<Run>& runs, bool accuracy) {
  std::vector<Plot> plots;
  for (const Run& run : runs) {
    if (run.x == kNaive) {
      plots.push_back({absl::StrFormat("copy = %g computes", run.copy_computes),
                       accuracy ? "forced accuracy, %" : "experts prefetched a layer",
                       "time over that without prefetch",
                       !accuracy,
                       {}});
      continue;
    }
    const Run* off = Find(runs, run.name, run.copy_computes, kPrefetchOff);
    if (run.x < 0.0 || off == nullptr) {
      continue;
    }
    std::vector<PlotSeries>& series = plots.back().series;
    if (series.empty() || series.back().name != run.name) {
      series.push_back({run.name, {}});
    }
    series.back().points.emplace_back(run.x, TimePerToken(run) / TimePerToken(*off));
  }
  return plots;
}

absl::Status RunStudy(const StudyFlags& flags, bool accuracy) {
  COMOE_ASSIGN_OR_RETURN(const routing::Trace trace, LoadTrace(flags.trace, flags.model));
  Study study(flags, trace);
  COMOE_ASSIGN_OR_RETURN(const std::vector<Run> runs, accuracy ? study.Accuracy() : study.Width());
  if (flags.json) {
    nlohmann::json out = ToJson(runs, accuracy);
    out["capacity"] = flags.capacity;
    out["batch"] = flags.batch;
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf(
        "%g %% of the experts on the device, batch %d; times in computes of an expert on the device\n",
        100.0 * flags.capacity, flags.batch);
    Print(runs, accuracy);
  }
  if (!flags.plot.empty()) {
    COMOE_RETURN_IF_ERROR(WritePlots(flags.plot, MakePlots(runs, accuracy)));
    std::fprintf(stderr, "plot: %s\n", flags.plot.c_str());
  }
  return absl::OkStatus();
}

void AddStudy(CLI::App& parent, const char* name, const char* about, bool accuracy, absl::Status& result) {
  auto flags = std::make_shared<StudyFlags>();
  CLI::App* command = parent.add_subcommand(name, about);
  command->add_option("--trace", flags->trace, "a trace, or a routing_trace.npz");
  command->add_option("--model", flags->model, "the model's folder, for a .npz that lies elsewhere");
  if (accuracy) {
    command
        ->add_option("--policy", flags->policies,
                     "simple: its guesses are forced; others: the look-ahead scores they read")
        ->capture_default_str();
  } else {
    command->add_option("--predictors", flags->predictors, "whose likeliest experts are prefetched")
        ->capture_default_str();
  }
  command->add_option("--links", flags->links, "a copy takes as long as this many experts on the device")
      ->capture_default_str();
  command->add_option("--capacity", flags->capacity, "share of the experts in device slots")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "sequences of a step")
      ->check(CLI::Range(1, static_cast<int>(routing::kMaxForecastRows)))
      ->capture_default_str();
  command->add_option("--steps", flags->steps, "at most so many, 0 for all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--host-computes", flags->rates.host_computes, "an expert on the host")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--dense-computes", flags->rates.dense_computes, "all else of a layer")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_flag("--host-lane", flags->rates.host_lane, "misses may be computed on the host");
  command->add_option("--plot", flags->plot, "also draw FILE.svg or FILE.png (gnuplot)");
  command->add_flag("--json", flags->json, "print JSON");
  command->add_flag("--quiet", flags->quiet, "no progress lines");
  command->callback([flags, accuracy, &result] { result = RunStudy(*flags, accuracy); });
}

}  // namespace

void AddTraceStudyCommand(CLI::App& trace, absl::Status& result) {
  CLI::App* command = trace.add_subcommand("study", "what forecasts must be like for prefetch to pay");
  command->require_subcommand(1);
  AddStudy(*command, "accuracy", "guesses of forced accuracy, 50 to 100 %", true, result);
  AddStudy(*command, "width", "prefetched sets from k experts to all", false, result);
}

}  // namespace comoe::cli
