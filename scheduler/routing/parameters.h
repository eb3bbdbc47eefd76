// Every setting of the routing hub in one place: what it may be, what it does, and which metric to watch.
// docs/TUNING.md is made from this table, sweeps and flags go through it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace comoe::routing {

// What a deployment cares for: `latency` prefetches more and wider, `throughput` only what is near certain.
enum class HubMode : std::uint8_t { kLatency, kThroughput };
absl::string_view HubModeName(HubMode mode);  // "latency", "throughput"
absl::StatusOr<HubMode> ParseHubMode(absl::string_view name);

// All numbers are doubles, so that one table reaches them; ParameterInfo says which are whole. 0 stands for
// "decided by the program" where a description says so.
struct HubParameters {
  double window = 100;
  double decay = 0.97;
  double top_k_multiple = 2;
  double cut_off = 0.5;
  double byte_price = 1;
  double look_ahead = 2;
  double look_ahead_limit = 0.02;
  double prefetch_depth = 4;
  double guess_slots = 8;
  double bytes_in_flight = 64.0 * 1024 * 1024;
  double staging_slots = 0;
  double device_share = 0;
  double pinned_share = 1;
  double admission = 1;
  double prediction_interval = 1;
  double predictor_thread = 2;
  double token_table_bytes = 16.0 * 1024 * 1024;
  double reuse_weight = 1;
  double hysteresis = 0.05;
  double promotions = 2;
};

struct ParameterInfo {
  const char* name;
  double HubParameters::*field;
  bool whole;
  double smallest, largest;
  double conservative;  // where a sweep starts
  double latency, throughput;
  const char* meaning;
  const char* raising;  // effect of a higher value
  const char* lowering;
  const char* metric;  // of docs/METRICS.md, which shows it
};

// In the order of the documentation.
absl::Span<const ParameterInfo> HubParameterTable();
// Null: none is called that.
const ParameterInfo* FindHubParameter(absl::string_view name);

HubParameters ConservativeParameters();
HubParameters ModeParameters(HubMode mode);

// NOT_FOUND lists the names; INVALID_ARGUMENT names the range. NaN is out of range.
absl::Status SetHubParameter(absl::string_view name, double value, HubParameters* parameters);
absl::StatusOr<double> GetHubParameter(absl::string_view name, const HubParameters& parameters);
// "name=value,name=value" on top of what is set.
absl::Status SetHubParameters(absl::string_view text, HubParameters* parameters);
// OK if every number is in its range.
absl::Status CheckHubParameters(const HubParameters& parameters);
// A Markdown table of all parameters.
std::string HubParameterDocumentation();

}  // namespace comoe::routing
