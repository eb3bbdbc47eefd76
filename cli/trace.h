// The subcommands of `comoe trace`, one file each, and what they share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_file.h"
#include "scheduler/routing/trace_stats.h"

namespace CLI {
class App;
}  // namespace CLI

namespace comoe::cli {

void AddTraceRecordCommand(CLI::App& trace, absl::Status& result);
void AddTraceImportCommand(CLI::App& trace, absl::Status& result);
void AddTraceReplayCommand(CLI::App& trace, absl::Status& result);
void AddTraceStatsCommand(CLI::App& trace, absl::Status& result);
void AddTraceFitCommand(CLI::App& trace, absl::Status& result);
void AddTraceStudyCommand(CLI::App& trace, absl::Status& result);

// A routing trace of ours, or a routing_trace.npz. The latter knows little of its model: `model` is its
// folder,
// "" for the folder that the file lies in, if that has a config.json; else sizes are those of the numbers
// seen.
absl::StatusOr<routing::Trace> LoadTrace(const std::string& path, const std::string& model);

// Which sequences are learnt from, and which are judged. A trace of one sequence is judged without history.
struct TraceSplit {
  std::vector<std::int32_t> history;  // indices
  std::vector<std::int32_t> judged;
};
// The first half and the second.
TraceSplit SplitInHalves(const routing::Trace& trace);
// The same in the order of the trace study. INVALID_ARGUMENT unless there are 96 sequences.
absl::StatusOr<TraceSplit> SplitAsStudy(const routing::Trace& trace);

// "0.125,0.25": shares in (0, 1].
absl::StatusOr<std::vector<double>> ParseShareList(const std::string& flag, const std::string& text);

// The flags that say what copies and computations cost.
struct RateFlags {
  std::string link;            // an emulated preset; "": by computes
  double copy_computes = 4.0;  // an expert's copy takes as long as this many experts on the device
  double host_computes = 6.0;
  double dense_computes = 0.1;
  bool host_lane = false;
  std::uint64_t expert_bytes = 0;  // 0: the trace's
};
void AddRateFlags(CLI::App& app, RateFlags& flags);
// In seconds with a link; otherwise in units of one expert on the device. INVALID_ARGUMENT if the bytes of an
// expert are not known.
absl::StatusOr<routing::ReplayRates> MakeRates(const RateFlags& flags, const routing::Trace& trace);

// A table of at least one row, all of the same widths, under `title`.
void PrintForecasts(const std::string& title, const std::vector<routing::ForecastQuality>& rows);

}  // namespace comoe::cli
