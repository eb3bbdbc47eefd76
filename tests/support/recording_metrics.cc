#include "tests/support/recording_metrics.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace comoe::testing {

// One series, of whichever kind; the interfaces have no method in common that means two things.
class RecordingMetrics::Entry final : public base::Counter, public base::Gauge, public base::Histogram {
 public:
  void Increment(double amount) override {
    base::MutexLock lock(&mutex_);
    value_ += amount;
    bad_increments_ += amount < 0 ? 1 : 0;
  }
  void Set(double value) override {
    base::MutexLock lock(&mutex_);
    value_ = value;
  }
  void Add(double amount) override {
    base::MutexLock lock(&mutex_);
    value_ += amount;
  }
  void Observe(double value) override {
    base::MutexLock lock(&mutex_);
    observations_.push_back(value);
  }
  double value() const {
    base::MutexLock lock(&mutex_);
    return value_;
  }
  std::vector<double> observations() const {
    base::MutexLock lock(&mutex_);
    return observations_;
  }
  int bad_increments() const {
    base::MutexLock lock(&mutex_);
    return bad_increments_;
  }

 private:
  mutable base::Mutex mutex_;
  double value_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<double> observations_ ABSL_GUARDED_BY(mutex_);
  int bad_increments_ ABSL_GUARDED_BY(mutex_) = 0;
};

RecordingMetrics::RecordingMetrics() = default;
RecordingMetrics::~RecordingMetrics() = default;

RecordingMetrics::Entry& RecordingMetrics::Add(absl::string_view name, const base::Labels& labels) {
  std::vector<std::string> parts;
  for (const auto& [label, value] : labels) {
    parts.push_back(absl::StrCat(label, "=\"", value, "\""));
  }
  std::sort(parts.begin(), parts.end());
  std::string series(name);
  if (!parts.empty()) {
    absl::StrAppend(&series, "{", absl::StrJoin(parts, ","), "}");
  }
  base::MutexLock lock(&mutex_);
  std::unique_ptr<Entry>& entry = entries_[series];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>();
  }
  return *entry;
}

base::Counter& RecordingMetrics::AddCounter(absl::string_view name, absl::string_view /*help*/,
                                            const base::Labels& labels) {
  return Add(name, labels);
}
base::Gauge& RecordingMetrics::AddGauge(absl::string_view name, absl::string_view /*help*/,
                                        const base::Labels& labels) {
  return Add(name, labels);
}
base::Histogram& RecordingMetrics::AddHistogram(absl::string_view name, absl::string_view /*help*/,
                                                const base::Labels& labels,
                                                const std::vector<double>& /*buckets*/) {
  return Add(name, labels);
}

double RecordingMetrics::Value(absl::string_view series) const {
  base::MutexLock lock(&mutex_);
  const auto found = entries_.find(std::string(series));
  return found == entries_.end() ? std::numeric_limits<double>::quiet_NaN() : found->second->value();
}

std::vector<double> RecordingMetrics::Observations(absl::string_view series) const {
  base::MutexLock lock(&mutex_);
  const auto found = entries_.find(std::string(series));
  return found == entries_.end() ? std::vector<double>() : found->second->observations();
}

std::vector<std::string> RecordingMetrics::Series() const {
  base::MutexLock lock(&mutex_);
  std::vector<std::string> series;
  for (const auto& [name, entry] : entries_) {
    series.push_back(name);
  }
  return series;
}

int RecordingMetrics::num_bad_increments() const {
  base::MutexLock lock(&mutex_);
  int bad = 0;
  for (const auto& [name, entry] : entries_) {
    bad += entry->bad_increments();
  }
  return bad;
}

}  // namespace comoe::testing
