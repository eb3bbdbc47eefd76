// `comoe doctor`: what is wrong with this machine or with these settings, and what to do. It measures; the
// probes stand in doctor_probes.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cli/doctor_report.h"
#include "cli/engine_options.h"

namespace comoe::cli {

struct DoctorOptions {
  EngineOptions engine;            // no model: what needs one is left out
  std::int64_t batch = 8;          // of the short run
  std::int64_t warmup_steps = 32;  // of it
  std::int64_t steps = 96;
  std::size_t copy_bytes = std::size_t{16} << 20;     // of each copy over the link that is timed
  std::uint64_t read_bytes = std::uint64_t{1} << 30;  // of host memory that is read, beyond what caches hold
  bool json = false;

  // Tests: where /proc and /sys lie, and what is broken on purpose (one of FaultNames(); "": nothing).
  std::string root;
  std::string fault;
};

// "refuse-pinned", "one-stream", "blocking-launches", "half-rate", "failing-copies", "slow-predictor":
// set-ups that the emulated accelerator can break. Of these, a card can "refuse-pinned" (--page-lock off) and
// have "one-stream".
absl::Span<const absl::string_view> FaultNames();

// Runs every probe: a few seconds without a large model. What a probe cannot measure is a failure in the
// report. INVALID_ARGUMENT: a fault or a flag that cannot be.
absl::StatusOr<DoctorReport> Examine(const DoctorOptions& options);

}  // namespace comoe::cli
