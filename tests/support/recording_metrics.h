// A MetricsSink that remembers, so that tests can look.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/metrics_sink.h"
#include "engine/base/sync.h"

namespace comoe::testing {

// Thread-safe. Series are named as Prometheus prints them, with labels sorted:
// `step_seconds{phase="decode"}`.
class RecordingMetrics final : public base::MetricsSink {
 public:
  RecordingMetrics();
  ~RecordingMetrics() override;

  base::Counter& AddCounter(absl::string_view name, absl::string_view help,
                            const base::Labels& labels) override;
  base::Gauge& AddGauge(absl::string_view name, absl::string_view help, const base::Labels& labels) override;
  base::Histogram& AddHistogram(absl::string_view name, absl::string_view help, const base::Labels& labels,
                                const std::vector<double>& buckets) override;

  // A counter's or gauge's value; NaN if there is no such series.
  double Value(absl::string_view series) const;
  // What a histogram was given, in order; empty if there is no such series.
  std::vector<double> Observations(absl::string_view series) const;
  std::vector<std::string> Series() const;
  // What a counter was given that it may not be: amounts below zero.
  int num_bad_increments() const;

 private:
  class Entry;
  Entry& Add(absl::string_view name, const base::Labels& labels) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable base::Mutex mutex_;
  std::map<std::string, std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::testing
