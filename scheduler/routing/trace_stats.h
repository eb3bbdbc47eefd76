// What the routing of a trace looks like: how uneven, how steady, how alike between texts; and how well
// forecasts name what is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::routing {

struct RoutingShape {
  struct Layer {
    double hottest_share = 0.0;  // of all routed slots, to the hottest tenth of the experts (at least one)
    double entropy_bits = 0.0;   // of the distribution over experts; log2(E) if all are alike
  };
  std::vector<Layer> layers;   // MoE layers
  double hottest_share = 0.0;  // means over layers
  double entropy_bits = 0.0;
  double uniform_bits = 0.0;

  // Hot sets are the quarter of a layer's experts that are used most. Overlap: share of one in the other.
  struct Drift {
    std::int32_t window_tokens = 0;
    double next_window = 0.0;  // a window of a text and the one after it
    double other_text = 0.0;   // and one of another text
  };
  std::vector<Drift> drift;
  double chance_overlap = 0.0;  // of two sets drawn by chance

  // Distinct experts of a layer and step with B texts side by side.
  struct Distinct {
    std::int32_t batch = 0;
    double experts = 0.0;
    double uniform = 0.0;  // if every row drew k of E by chance
  };
  std::vector<Distinct> distinct;
};

// Windows and batches that the trace is too short for are left out.
RoutingShape DescribeRouting(const Trace& trace, absl::Span<const std::int32_t> window_tokens,
                             absl::Span<const std::int32_t> batches);

// How well sets of some sizes name the k experts of a row.
struct ForecastQuality {
  std::string name;
  std::int32_t distance = 0;         // MoE layers ahead
  std::vector<std::int32_t> widths;  // of the sets
  std::vector<double> recall;        // of routed slots, one for each width
  std::vector<double> precision;     // of what was named; sets can be smaller than their width
  std::int64_t rows = 0;             // layers x rows judged
};

class QualityMeter {
 public:
  QualityMeter(std::string name, std::int32_t distance, std::vector<std::int32_t> widths);
  // `named`: likeliest first; a set of width w is its first w.
  void Add(absl::Span<const std::uint16_t> named, absl::Span<const std::uint16_t> routed);
  ForecastQuality Result() const;

 private:
  ForecastQuality quality_;
  std::vector<std::int64_t> found_;
  std::vector<std::int64_t> named_;
  std::int64_t routed_ = 0;
};

// A predictor over steps of the trace: it sees `history` unjudged, then `judged`, in which, after each layer
// is shown to it, its forecasts for the 1, 2, ... max_distance MoE layers after are judged, for every row. A
// result for each distance. Steps have at most kMaxForecastRows rows. `lookahead` may be empty.
struct JudgeOptions {
  std::vector<std::int32_t> widths;
  std::int32_t max_distance = 1;
  LookaheadSource lookahead;
};
std::vector<ForecastQuality> JudgePredictor(const Trace& trace,
                                            const std::vector<std::vector<ReplayRow>>& history,
                                            const std::vector<std::vector<ReplayRow>>& judged,
                                            const JudgeOptions& options, RowPredictor* predictor);
// The recorded look-ahead; widths beyond what was recorded are left out.
std::vector<ForecastQuality> JudgeRecordedLookahead(const Trace& trace,
                                                    const std::vector<std::vector<ReplayRow>>& steps,
                                                    absl::Span<const std::int32_t> widths);

}  // namespace comoe::routing
