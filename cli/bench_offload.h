// What `comoe bench offload` and its studies (--sweep, --ablation) share: one run of the engine as a point,
// and how points are compared and shown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/engine_options.h"
#include "cli/forced_texts.h"
#include "cli/offload_plot.h"
#include "cli/offload_run.h"
#include "engine/api/offload.h"
#include "engine/base/ids.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {

struct BenchOffloadOptions {
  EngineOptions engine;
  std::string policies = "naive,static,lru,simple,hub";
  std::string batches = "1,8";
  std::string capacities = "0.25";
  std::string host_lanes;  // "off,on": points for each; "": as --host-lane says
  TextFlags texts;
  OffloadRunOptions run;
  double copy_computes = 0.0;  // 0: by the preset's rates
  double host_computes = 6.0;  // with copy_computes
  double dense_computes = 0.1;
  std::vector<std::string> sweeps;  // "NAME=V1,V2,..."
  bool ablation = false;
  std::string plot;
  bool json = false;
};

// The texts that are forced, and what is tried.
struct OffloadStudy {
  std::string model;  // its name
  Texts texts;
  std::vector<std::int64_t> batches;
  std::vector<double> shares;  // of the experts in device memory
};

struct OffloadPoint {
  std::string policy;
  double capacity = 0.0;
  std::int64_t batch = 0;
  bool host_lane = false;
  std::string tiers;  // as the engine describes them
  OffloadRun run;
  bool same_tokens = true;  // logits equal those of the first point with this batch and capacity, to the bit
};

// Runs `policy` ("naive-pageable": naive with memory that is not page-locked) in an engine of its own.
absl::StatusOr<OffloadPoint> MeasureOffload(const BenchOffloadOptions& options, const Texts& texts,
                                            const std::string& policy, double capacity, std::int64_t batch);

// Every policy with every capacity, batch and setting of the host lane, in this order from the last to the
// first.
absl::StatusOr<std::vector<OffloadPoint>> ComparePolicies(const BenchOffloadOptions& options,
                                                          const OffloadStudy& study);

// --- bench_offload_report.cc ---

double Ratio(double a, double b);  // 0 where b is not above 0
std::uint64_t BytesToDevice(const api::OffloadTotals& totals);
double MegabytesPerToken(const OffloadRun& run);
double HitShare(const OffloadRun& run);     // of the experts that were served
double WastedShare(const OffloadRun& run);  // of the bytes to the device
double Quantile(std::vector<double> values, double q);

void PrintOffloadTable(const std::vector<OffloadPoint>& points);
nlohmann::json OffloadJson(const std::vector<OffloadPoint>& points);
// Tokens per second and bytes a token over the capacity (or, with one capacity, over the batch).
std::vector<Plot> OffloadPlots(const std::vector<OffloadPoint>& points);

// --- a file each ---

// The hub with one parameter after the other moved, all others at their conservative values.
absl::Status SweepOffload(const BenchOffloadOptions& options, const OffloadStudy& study);
// What each part of the whole is worth: parts added one after the other, and left out one at a time.
absl::Status AblateOffload(const BenchOffloadOptions& options, const OffloadStudy& study);

}  // namespace comoe::cli
