// The runs of `comoe trace study`.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/progress.h"
#include "cli/trace_study.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/hub_director.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/study_director.h"
#include "scheduler/routing/trace_predictors.h"

namespace comoe::cli {
namespace {

constexpr std::uint64_t kSeed = 20261129;
constexpr int kLowestPercent = 50;
constexpr int kPercentStep = 5;

using Steps = std::vector<std::vector<routing::ReplayRow>>;

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

  absl::StatusOr<std::vector<StudyRun>> Accuracy() {
    COMOE_RETURN_IF_ERROR(Prepare());
    const std::vector<std::string> policies = absl::StrSplit(flags_.policies, ',');
    for (const double copy : copies_) {
      COMOE_RETURN_IF_ERROR(AddNaive(copy));
      for (const std::string& policy : policies) {
        COMOE_RETURN_IF_ERROR(AddForced(policy, copy, kPrefetchOff));
        for (int percent = kLowestPercent; percent <= 100; percent += kPercentStep) {
          COMOE_RETURN_IF_ERROR(AddForced(policy, copy, percent));
        }
      }
    }
    return std::move(runs_);
  }

  absl::StatusOr<std::vector<StudyRun>> Width() {
    COMOE_RETURN_IF_ERROR(Prepare());
    const std::int32_t num_experts = trace_.header.num_experts;
    const std::vector<std::string> names = absl::StrSplit(flags_.predictors, ',');
    for (const double copy : copies_) {
      COMOE_RETURN_IF_ERROR(AddNaive(copy));
      for (const std::string& name : names) {
        COMOE_RETURN_IF_ERROR(AddWide(name, copy, 0));
        for (std::int32_t width = trace_.header.experts_per_token;;
             width = std::min(2 * width, num_experts)) {
          COMOE_RETURN_IF_ERROR(AddWide(name, copy, width));
          if (width == num_experts) {
            break;
          }
        }
      }
    }
    return std::move(runs_);
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

  absl::Status AddNaive(double copy) {
    COMOE_ASSIGN_OR_RETURN(const routing::Policy naive, routing::MakePolicy("naive", shape_, Options()));
    return Add({"naive", copy, kNaiveRun, {}}, {}, *naive.director);
  }

  // `simple` gets its guesses from outside and believes them all; the hub gets a predictor, and judges.
  absl::Status AddForced(const std::string& policy, double copy, double percent) {
    const bool off = percent == kPrefetchOff;
    if (policy == "simple") {
      routing::GuessSource guesses;
      if (!off) {
        guesses = routing::ForcedGuesses(trace_, steps_, percent / 100.0, kSeed);
      }
      const std::unique_ptr<api::ExpertDirector> director =
          routing::MakeStudyDirector(shape_, Options(), std::move(guesses));
      return Add({policy, copy, percent, {}}, {}, *director);
    }
    if (policy != "hub") {
      return absl::InvalidArgumentError(
          absl::StrCat("--policy ", policy, ": accuracy is forced upon simple and hub"));
    }
    routing::PolicyOptions options = Options();
    options.hub.prefetch_depth = off ? 0 : options.hub.prefetch_depth;
    routing::HubDirector hub(
        shape_, options,
        off ? nullptr : routing::MakeForcedPredictor(trace_, steps_, percent / 100.0, kSeed));
    return Add({policy, copy, percent, {}}, {}, hub);
  }

  // The `width` likeliest experts of the next layer, all of them believed; the hub, asked for as many,
  // judges.
  absl::Status AddWide(const std::string& name, double copy, std::int32_t width) {
    const double x = width > 0 ? width : kPrefetchOff;
    if (name == "hub") {
      routing::PolicyOptions options = Options();
      options.hub.prefetch_depth = width;
      options.hub.top_k_multiple =
          std::clamp(static_cast<double>(width) / trace_.header.experts_per_token, 1.0, 64.0);
      options.hub.cut_off = 0.0;
      COMOE_ASSIGN_OR_RETURN(const routing::Policy hub, routing::MakePolicy("hub", shape_, options));
      return Add({name, copy, x, {}}, routing::RecordedLookahead(trace_), *hub.director);
    }
    COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<routing::RowPredictor> predictor,
                           routing::MakeTracePredictor(name, trace_.Shape(0)));
    routing::GuessSource guesses;
    if (width > 0) {
      guesses = routing::PredictedGuesses(trace_, steps_, routing::RecordedLookahead(trace_), width,
                                          predictor.get());
    }
    const std::unique_ptr<api::ExpertDirector> director =
        routing::MakeStudyDirector(shape_, Options(), std::move(guesses));
    return Add({name, copy, x, {}}, {}, *director);
  }

  absl::Status Add(StudyRun run, const routing::LookaheadSource& lookahead, api::ExpertDirector& director) {
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
    runs_.push_back(std::move(run));
    return absl::OkStatus();
  }

  const StudyFlags& flags_;
  const routing::Trace& trace_;
  const Steps steps_;
  const routing::TierShape shape_;
  std::vector<double> copies_;
  std::vector<StudyRun> runs_;
};

}  // namespace

absl::StatusOr<std::vector<StudyRun>> RunAccuracyStudy(const StudyFlags& flags, const routing::Trace& trace) {
  return Study(flags, trace).Accuracy();
}

absl::StatusOr<std::vector<StudyRun>> RunWidthStudy(const StudyFlags& flags, const routing::Trace& trace) {
  return Study(flags, trace).Width();
}

}  // namespace comoe::cli
