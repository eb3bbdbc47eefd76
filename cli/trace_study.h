// What the parts of `comoe trace study` share: the runs of a study, and what is read out of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/offload_plot.h"
#include "cli/trace.h"
#include "nlohmann/json.hpp"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::cli {

struct StudyFlags {
  std::string trace;
  std::string model;
  std::string policies = "simple,hub";
  std::string predictors = "window,mix,hub";
  std::string links = "4,12";
  double capacity = 0.25;
  std::int32_t batch = 1;
  std::int64_t steps = 2000;
  RateFlags rates;
  std::string plot;
  bool json = false;
  bool quiet = false;
};

enum class StudyKind { kAccuracy, kWidth };

// A run of a study. `x`: accuracy in percent, or width in experts, or one of the two below.
struct StudyRun {
  std::string name;  // a policy, or a predictor
  double copy_computes = 0.0;
  double x = 0.0;
  routing::TimedTotals totals;

  double time_per_token() const {
    return totals.rows > 0 ? totals.seconds / static_cast<double>(totals.rows) : 0.0;
  }
};
inline constexpr double kPrefetchOff = -1.0;
inline constexpr double kNaiveRun = -2.0;

// Per link: naive, then for each name prefetch off and x ascending. INVALID_ARGUMENT for flags that cannot
// be.
absl::StatusOr<std::vector<StudyRun>> RunAccuracyStudy(const StudyFlags& flags, const routing::Trace& trace);
absl::StatusOr<std::vector<StudyRun>> RunWidthStudy(const StudyFlags& flags, const routing::Trace& trace);

// Where prefetch begins to pay, for one name and link.
struct Knee {
  std::string name;
  double copy_computes = 0.0;
  // The smallest x tried from which on prefetch is faster than none by more than 1 %; and that from which on
  // it has half of its gain at the largest x. -1: there is none.
  double pays_from = -1.0;
  double half_from = -1.0;
  double gain = 0.0;              // at the largest x, 0.1: a tenth faster than without
  double fastest = kPrefetchOff;  // the x with the least time
  double fastest_gain = 0.0;      // there
};
std::vector<Knee> FindKnees(const std::vector<StudyRun>& runs);

void PrintStudy(StudyKind kind, const std::vector<StudyRun>& runs);
nlohmann::json StudyJson(StudyKind kind, const std::vector<StudyRun>& runs);
// One for each link, with the knees marked.
std::vector<Plot> StudyPlots(StudyKind kind, const std::vector<StudyRun>& runs);

}  // namespace comoe::cli
