#include "server/metrics_exporter.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <cmath>
#include <exception>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/check.h"
#include "engine/base/host.h"
#include "engine/base/log.h"
#include "engine/base/sync.h"
#include "engine/tokenizer/utf8.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/config.h"

namespace comoe::server {
namespace {

class ExportedCounter final : public base::Counter {
 public:
  explicit ExportedCounter(prometheus::Counter& counter) : counter_(counter) {}
  void Increment(double amount) override {
    if (std::isfinite(amount) && amount > 0) {
      counter_.Increment(amount);
    }
  }

 private:
  prometheus::Counter& counter_;
};

class ExportedGauge final : public base::Gauge {
 public:
  explicit ExportedGauge(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void Set(double value) override {
    if (std::isfinite(value)) {
      gauge_.Set(value);
    }
  }
  void Add(double amount) override {
    if (std::isfinite(amount)) {
      gauge_.Increment(amount);
    }
  }

 private:
  prometheus::Gauge& gauge_;
};

class ExportedHistogram final : public base::Histogram {
 public:
  explicit ExportedHistogram(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void Observe(double value) override {
    if (std::isfinite(value)) {
      histogram_.Observe(value);
    }
  }

 private:
  prometheus::Histogram& histogram_;
};

bool IsName(absl::string_view name) {
  constexpr absl::string_view kStart = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  const auto inside = [kStart](char c) {
    return kStart.find(c) != absl::string_view::npos || (c >= '0' && c <= '9');
  };
  if (name.empty() || kStart.find(name.front()) == absl::string_view::npos) {
    return false;
  }
  for (const char c : name) {
    if (!inside(c)) {
      return false;
    }
  }
  return true;
}

// The text with each broken piece replaced: one broken label value spoils the whole scrape.
std::string ValidUtf8(absl::string_view text) {
  std::string out;
  while (true) {
    const tokenizer::Utf8Scan scan = tokenizer::ScanUtf8(text);
    absl::StrAppend(&out, text.substr(0, scan.valid_bytes));
    if (scan.valid_bytes == text.size()) {
      return out;
    }
    absl::StrAppend(&out, tokenizer::kReplacementUtf8);
    text.remove_prefix(scan.valid_bytes + scan.bad_bytes);
  }
}

prometheus::Labels ToPrometheus(const base::Labels& labels) {
  prometheus::Labels out;
  for (const auto& [name, value] : labels) {
    COMOE_CHECK(IsLabelName(name), "label names are legal and not reserved");
    out[name] = ValidUtf8(value);
  }
  return out;
}

std::string KeyOf(const std::string& name, const prometheus::Labels& labels) {
  std::string key = name;
  for (const auto& [label, value] : labels) {
    absl::StrAppend(&key, "\x1f", label, "\x1e", value);
  }
  return key;
}

int CountOpenFiles() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) {
    return 0;
  }
  int count = -1;  // the one that reads the folder
  while (const dirent* entry = readdir(dir)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  closedir(dir);
  return count;
}

// Read when scraped.
class ProcessCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    std::vector<prometheus::MetricFamily> families;
    const auto gauge = [&families](const char* name, const char* help, double value) {
      prometheus::ClientMetric metric;
      metric.gauge.value = value;
      families.push_back({name, help, prometheus::MetricType::Gauge, {metric}});
    };
    gauge("process_resident_memory_bytes", "Resident memory.", static_cast<double>(base::ResidentBytes()));
    gauge("process_open_fds", "Open file descriptors.", CountOpenFiles());
    gauge("process_max_fds", "File descriptors that may be open.", static_cast<double>(files.rlim_cur));
    gauge("process_start_time_seconds", "When the process started, in Unix time.", start_seconds_);
    prometheus::ClientMetric cpu;
    cpu.counter.value = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    families.push_back(
        {"process_cpu_seconds_total", "CPU time, user and system.", prometheus::MetricType::Counter, {cpu}});
    return families;
  }

 private:
  const double start_seconds_ = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
};

}  // namespace

bool IsMetricName(absl::string_view name) { return IsName(name); }

bool IsLabelName(absl::string_view name) {
  return IsName(name) && name.substr(0, 2) != "__" && name != "le" && name != "quantile";
}

struct MetricsExporter::Impl {
  template <typename T>
  using Kept = std::map<std::string, std::unique_ptr<T>>;

  // The metric of this name and labels, made by `make(full name, labels)` the first time. `fallback` when the
  // name has too many series already.
  template <typename T, typename Make>
  T& Get(Kept<T>& kept, T& fallback, absl::string_view name, const base::Labels& labels, Make make) {
    COMOE_CHECK(IsMetricName(name), "metric names are legal");
    const std::string full =
        absl::StartsWith(name, "grpc_server_") ? std::string(name) : absl::StrCat("comoe_", name);
    const prometheus::Labels converted = ToPrometheus(labels);
    base::MutexLock lock(&mutex);
    std::unique_ptr<T>& entry = kept[KeyOf(full, converted)];
    if (entry != nullptr) {
      return *entry;
    }
    std::size_t& series = num_series[full];
    if (series >= kMaxSeriesPerName) {
      kept.erase(KeyOf(full, converted));
      if (series++ == kMaxSeriesPerName) {
        base::Logf(base::LogLevel::kError, "metrics", "%s has %d series: no more are kept", full,
                   kMaxSeriesPerName);
      }
      return fallback;
    }
    ++series;
    entry = make(full, converted);
    return *entry;
  }

  const std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  const std::shared_ptr<ProcessCollector> process = std::make_shared<ProcessCollector>();
  const std::unique_ptr<base::MetricsSink> null_sink = base::MakeNullMetricsSink();

  base::Mutex mutex;
  Kept<base::Counter> counters;  // guarded by mutex, as the next three
  Kept<base::Gauge> gauges;
  Kept<base::Histogram> histograms;
  std::map<std::string, std::size_t> num_series;

  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsExporter::MetricsExporter() : impl_(std::make_unique<Impl>()) {}

// The endpoint goes first: a scrape under way reads the registry.
MetricsExporter::~MetricsExporter() { impl_->exposer.reset(); }

base::Counter& MetricsExporter::AddCounter(absl::string_view name, absl::string_view help,
                                           const base::Labels& labels) {
  base::Counter& fallback = impl_->null_sink->AddCounter(name, help, {});
  return impl_->Get(
      impl_->counters, fallback, name, labels,
      [this, help](const std::string& full, const prometheus::Labels& converted) {
        prometheus::Family<prometheus::Counter>& family =
            prometheus::BuildCounter().Name(full).Help(std::string(help)).Register(*impl_->registry);
        return std::make_unique<ExportedCounter>(family.Add(converted));
      });
}

base::Gauge& MetricsExporter::AddGauge(absl::string_view name, absl::string_view help,
                                       const base::Labels& labels) {
  base::Gauge& fallback = impl_->null_sink->AddGauge(name, help, {});
  return impl_->Get(
      impl_->gauges, fallback, name, labels,
      [this, help](const std::string& full, const prometheus::Labels& converted) {
        prometheus::Family<prometheus::Gauge>& family =
            prometheus::BuildGauge().Name(full).Help(std::string(help)).Register(*impl_->registry);
        return std::make_unique<ExportedGauge>(family.Add(converted));
      });
}

base::Histogram& MetricsExporter::AddHistogram(absl::string_view name, absl::string_view help,
                                               const base::Labels& labels,
                                               const std::vector<double>& buckets) {
  base::Histogram& fallback = impl_->null_sink->AddHistogram(name, help, {}, buckets);
  return impl_->Get(
      impl_->histograms, fallback, name, labels,
      [this, help, &buckets](const std::string& full, const prometheus::Labels& converted) {
        prometheus::Family<prometheus::Histogram>& family =
            prometheus::BuildHistogram().Name(full).Help(std::string(help)).Register(*impl_->registry);
        return std::make_unique<ExportedHistogram>(family.Add(converted, buckets));
      });
}

absl::Status MetricsExporter::Listen(absl::string_view address) {
  try {
    // Several threads and a short wait for a request's bytes: a client that sends half of one must not keep
    // the others from being served.
    auto exposer = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", std::string(address), "num_threads", "4",
                                 "request_timeout_ms", "2000", "enable_keep_alive", "no"});
    exposer->RegisterCollectable(impl_->registry);
    exposer->RegisterCollectable(impl_->process);
    const std::vector<int> ports = exposer->GetListeningPorts();
    address_ = ports.empty() ? std::string(address) : WithPort(address, ports.front());
    impl_->exposer = std::move(exposer);
  } catch (const std::exception&) {  // CivetException: its text is only that the server could not be made
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address,
                                               ": another process has the port, or the address is not one of "
                                               "this machine's; choose another with --metrics-listen"));
  }
  return absl::OkStatus();
}

std::string MetricsExporter::Render() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry->Collect();
  for (prometheus::MetricFamily& family : impl_->process->Collect()) {
    families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace comoe::server
