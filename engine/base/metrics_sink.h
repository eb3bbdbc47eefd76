// What code below the server may do with metrics: count, set, observe. The server implements it with
// Prometheus; tests with a recorder. Nothing here knows a registry, a label type or a port.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace comoe::base {

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Increment(double amount = 1.0) = 0;  // amount >= 0; a non-finite amount is dropped
};
class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
  virtual void Add(double amount) = 0;
};
class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;  // a non-finite value is dropped
};

// Label sets are known at start: never text from a client.
using Labels = std::vector<std::pair<std::string, std::string>>;

// Thread-safe. The returned references live as long as the sink: look them up once and keep them.
// Names are without the `comoe_` prefix, in base units, counters end in `_total`.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual Counter& AddCounter(absl::string_view name, absl::string_view help, const Labels& labels) = 0;
  virtual Gauge& AddGauge(absl::string_view name, absl::string_view help, const Labels& labels) = 0;
  virtual Histogram& AddHistogram(absl::string_view name, absl::string_view help, const Labels& labels,
                                  const std::vector<double>& buckets) = 0;
};

// Takes everything and keeps nothing: for offline commands and tests that do not look at metrics.
std::unique_ptr<MetricsSink> MakeNullMetricsSink();

}  // namespace comoe::base
