#include "engine/base/metrics_sink.h"

namespace comoe::base {
namespace {

class NullCounter final : public Counter {
 public:
  void Increment(double /*amount*/) override {}
};
class NullGauge final : public Gauge {
 public:
  void Set(double /*value*/) override {}
  void Add(double /*amount*/) override {}
};
class NullHistogram final : public Histogram {
 public:
  void Observe(double /*value*/) override {}
};

class NullMetricsSink final : public MetricsSink {
 public:
  Counter& AddCounter(absl::string_view /*name*/, absl::string_view /*help*/,
                      const Labels& /*labels*/) override {
    return counter_;
  }
  Gauge& AddGauge(absl::string_view /*name*/, absl::string_view /*help*/, const Labels& /*labels*/) override {
    return gauge_;
  }
  Histogram& AddHistogram(absl::string_view /*name*/, absl::string_view /*help*/, const Labels& /*labels*/,
                          const std::vector<double>& /*buckets*/) override {
    return histogram_;
  }

 private:
  NullCounter counter_;
  NullGauge gauge_;
  NullHistogram histogram_;
};

}  // namespace

std::unique_ptr<MetricsSink> MakeNullMetricsSink() { return std::make_unique<NullMetricsSink>(); }

}  // namespace comoe::base
