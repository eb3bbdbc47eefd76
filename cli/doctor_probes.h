// The probes of `comoe doctor`: each looks at one thing and adds what it found to the report.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/checkpoint_folder.h"
#include "cli/director_timing.h"
#include "cli/doctor.h"
#include "cli/doctor_report.h"
#include "cli/offload_run.h"
#include "engine/base/host.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/device/device.h"
#include "engine/device/hardware/system_files.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::cli {

// What probes share: the settings, and what earlier ones learnt. Used by one thread.
struct DoctorContext {
  DoctorOptions options;  // with the fault applied and the policy named
  device::SystemFiles files;
  base::HostMemory host;
  std::optional<CheckpointFolder> model;
  std::optional<checkpoint::MemoryPlan> plan;
  tensor::BlobLayout blob;  // an expert of the model, or of a common size

  std::unique_ptr<device::Device> device;         // nullptr: experts are computed where they lie...
  absl::Status device_status;                     // ...or why there is none
  const kernels::KernelTable* kernels = nullptr;  // for `device`; nullptr: none
  bool pinned = true;                             // `device` gives page-locked memory
  bool plan_fits = true;
  double read_bytes_per_second = 0.0;  // of host memory; 0: not measured

  std::optional<OffloadRun> run;        // with these settings...
  std::optional<OffloadRun> roomy_run;  // ...and with twice the slots
  DirectorTimes director;               // of `run`

  DoctorReport report;

  // Settings that the probes' runs use.
  const EngineOptions& engine() const { return options.engine; }
  Finding& Add(absl::string_view id, Severity severity, std::string measured, std::string expected = "",
               std::string remedy = "") {
    report.findings.push_back(
        {std::string(id), severity, std::move(measured), std::move(expected), std::move(remedy), {}});
    return report.findings.back();
  }
};

// A probe's error becomes a failure under the id it was called for.
struct Probe {
  absl::string_view id;
  absl::Status (*run)(DoctorContext& context);
};

absl::Status ProbeGpu(DoctorContext& context);        // doctor_link.cc
absl::Status ProbeLink(DoctorContext& context);       // doctor_link.cc
absl::Status ProbeOverlap(DoctorContext& context);    // doctor_overlap.cc
absl::Status ProbeHost(DoctorContext& context);       // doctor_host.cc
absl::Status ProbeMemory(DoctorContext& context);     // doctor_memory.cc
absl::Status ProbePlan(DoctorContext& context);       // doctor_plan.cc
absl::Status ProbeTiers(DoctorContext& context);      // doctor_tiers.cc
absl::Status ProbeRun(DoctorContext& context);        // doctor_run.cc
absl::Status ProbePredictor(DoctorContext& context);  // doctor_predictor.cc
absl::Status ProbeBinding(DoctorContext& context);    // doctor_binding.cc

}  // namespace comoe::cli
