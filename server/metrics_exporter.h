// base::MetricsSink over prometheus-cpp, and the HTTP endpoint that is scraped.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/metrics_sink.h"

namespace comoe::server {

// Thread-safe. Every name gets the prefix `comoe_`, but for grpc_server_*, which are the names of
// gRPC's own middlewares. The library underneath keeps what would spoil a scrape
// for ever (a NaN in a counter, a label named `le`, broken UTF-8 in a label), so this class does not let it
// through: a non-finite or negative amount is dropped, label values are made valid UTF-8, and a malformed
// name or label name is a bug of ours that ends the process. Asking for the same name and labels again gives
// the same metric. The endpoint also reports process_* (memory, file descriptors, CPU) as Prometheus' own
// clients name them.
class MetricsExporter final : public base::MetricsSink {
 public:
  // Series of one name; asking for more gives a metric that nobody sees, and one line in the log.
  static constexpr std::size_t kMaxSeriesPerName = 1000;

  MetricsExporter();
  // Stops listening. Metrics handed out die here.
  ~MetricsExporter() override;
  MetricsExporter(const MetricsExporter&) = delete;
  MetricsExporter& operator=(const MetricsExporter&) = delete;

  base::Counter& AddCounter(absl::string_view name, absl::string_view help,
                            const base::Labels& labels) override;
  base::Gauge& AddGauge(absl::string_view name, absl::string_view help, const base::Labels& labels) override;
  base::Histogram& AddHistogram(absl::string_view name, absl::string_view help, const base::Labels& labels,
                                const std::vector<double>& buckets) override;

  // Serves GET /metrics at HOST:PORT (port 0: any free one). UNAVAILABLE names the address. Once.
  absl::Status Listen(absl::string_view address);
  // HOST:PORT with the real port; "" before Listen.
  const std::string& address() const { return address_; }

  // What a scrape would show, without HTTP.
  std::string Render() const;

 private:
  struct Impl;  // registry, metrics, endpoint

  const std::unique_ptr<Impl> impl_;
  std::string address_;  // constant after Listen
};

// "comoe_" + name, when the whole is a legal metric name: [a-zA-Z_][a-zA-Z0-9_]*.
bool IsMetricName(absl::string_view name);
// [a-zA-Z_][a-zA-Z0-9_]*, not starting with "__", and not "le" or "quantile".
bool IsLabelName(absl::string_view name);

}  // namespace comoe::server
