#include "cli/doctor.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/cuda_options.h"
#include "cli/doctor_probes.h"
#include "cli/engine_memory.h"
#include "cli/given_flags.h"
#include "cli/hardware_lines.h"
#include "cli/offload_options.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/emulated/emulated_kernels.h"

namespace comoe::cli {
namespace {

constexpr std::array<absl::string_view, 6> kFaults = {"refuse-pinned", "one-stream",     "blocking-launches",
                                                      "half-rate",     "failing-copies", "slow-predictor"};

// Where there is no model, an expert of 2048 x 768 in BF16: 9 MiB.
constexpr std::int64_t kCommonHidden = 2048;
constexpr std::int64_t kCommonIntermediate = 768;

constexpr Probe kProbes[] = {{"gpu.present", ProbeGpu},          {"link.rate", ProbeLink},
                             {"overlap.streams", ProbeOverlap},  {"host.cores", ProbeHost},
                             {"memory.read_rate", ProbeMemory},  {"plan.fits", ProbePlan},
                             {"tiers.slots", ProbeTiers},        {"run.steps", ProbeRun},
                             {"predictor.cost", ProbePredictor}, {"binding", ProbeBinding}};

// What can be broken on a card without breaking it.
absl::Status ApplyCudaFault(DoctorOptions& options) {
  if (options.fault == "refuse-pinned") {
    options.engine.page_lock = "off";
  } else if (options.fault == "one-stream") {
    options.engine.serial = device::EmulatedSerial::kOneStream;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "--fault ", options.fault,
        ": on a card there are refuse-pinned, one-stream and slow-predictor; for blocking launches set "
        "CUDA_LAUNCH_BLOCKING=1"));
  }
  return absl::OkStatus();
}

absl::Status ApplyFault(DoctorOptions& options) {
  EngineOptions& engine = options.engine;
  if (options.fault.empty() || options.fault == "slow-predictor") {
    return absl::OkStatus();
  }
  if (engine.device == "cuda") {
    return ApplyCudaFault(options);
  }
  if (options.fault == "refuse-pinned") {
    engine.refuse_pinned = true;
  } else if (options.fault == "one-stream") {
    engine.serial = device::EmulatedSerial::kOneStream;
  } else if (options.fault == "blocking-launches") {
    engine.serial = device::EmulatedSerial::kBlockingLaunches;
  } else if (options.fault == "half-rate") {
    COMOE_ASSIGN_OR_RETURN(device::EmulatedRates rates, device::PresetRates(engine.emulated));
    rates.link_bytes_per_second /= 2.0;
    engine.rates = std::make_shared<const device::EmulatedRates>(rates);
  } else if (options.fault == "failing-copies") {
    engine.copy_faults = [](const device::CopyRequest& request) {
      constexpr std::uint64_t kEvery = 50;
      const bool fails = request.stage.kind == base::StageKind::kCopy &&
                         request.index % kEvery == kEvery - 1 &&
                         request.stage.reason != base::CopyReason::kWarmup;
      return fails ? device::CopyFault::Fail(absl::InternalError("a fault on purpose"))
                   : device::CopyFault::None();
    };
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--fault ", options.fault, ": there are ", absl::StrJoin(kFaults, ", ")));
  }
  return absl::OkStatus();
}

// Model and device as far as they can be had; what cannot be had is for the probes to say.
absl::Status Prepare(DoctorContext& context) {
  EngineOptions& engine = context.options.engine;
  ChooseDevice(engine);
  COMOE_RETURN_IF_ERROR(ApplyFault(context.options));
  engine.policy = PolicyOf(engine);
  engine.quiet = true;
  context.host = base::ReadHostMemory(context.options.root);
  context.blob = tensor::BlobLayout::Make(tensor::DType::kBf16, kCommonHidden, kCommonIntermediate);
  if (!engine.model.empty()) {
    COMOE_ASSIGN_OR_RETURN(context.model, OpenCheckpoint(engine.model, engine.widen));
    COMOE_ASSIGN_OR_RETURN(context.plan,
                           PlanMemory(engine, context.model->config, context.model->tensors.expert_dtype));
    context.blob = tensor::BlobLayout::Make(context.model->tensors.expert_dtype, context.model->config.hidden,
                                            context.model->config.expert_intermediate);
    if (engine.device != "cuda") {
      COMOE_RETURN_IF_ERROR(CheckEngineOptions(engine));
    }
  }
  if (engine.device == "cpu") {
    context.report.device = "cpu: experts are computed where they lie";
    return absl::OkStatus();
  }
  context.device_status = CheckOffloadOptions(engine);
  if (context.device_status.ok()) {
    absl::StatusOr<std::unique_ptr<device::Device>> device = MakeOffloadDevice(engine, context.blob.bytes);
    context.device_status = device.status();
    if (device.ok()) {
      context.device = *std::move(device);
    }
  }
  if (!context.device_status.ok() && engine.device != "cuda") {
    return context.device_status;  // a flag that cannot be
  }
  if (context.device != nullptr && context.device->id().kind == device::DeviceKind::kEmulated) {
    context.kernels = &kernels::EmulatedKernels();
  } else if (context.device != nullptr) {
    context.kernels = &CudaKernelsFor(engine);
  }
  context.report.device =
      context.device != nullptr
          ? context.device->Describe()
          : absl::StrCat(engine.device, ": none (", std::string(context.device_status.message()), ")");
  return absl::OkStatus();
}

absl::Status Doctor(const DoctorOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const DoctorReport report, Examine(options));
  std::fputs((options.json ? FormatJson(report) : FormatTable(report)).c_str(), stdout);
  if (report.Worst() == Severity::kFailure) {
    std::fflush(stdout);
    return absl::FailedPreconditionError(
        "doctor: at least one failure; docs/TROUBLESHOOTING.md has a row for each");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const absl::string_view> FaultNames() { return kFaults; }

absl::StatusOr<DoctorReport> Examine(const DoctorOptions& options) {
  DoctorContext context;
  context.options = options;
  context.files = device::SystemFiles(options.root);
  COMOE_RETURN_IF_ERROR(CheckGivenFlags(options.engine));
  COMOE_RETURN_IF_ERROR(HubParametersOf(options.engine).status());
  COMOE_RETURN_IF_ERROR(Prepare(context));
  context.report.hardware = HardwareLines(context.files);
  for (const Probe& probe : kProbes) {
    if (const absl::Status status = probe.run(context); !status.ok()) {
      context.Add(probe.id, Severity::kFailure, std::string(status.message()), "it can be measured",
                  "what the message says; `comoe inspect` and `comoe verify` look at the model alone");
    }
  }
  return std::move(context.report);
}

void AddDoctorCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "what is wrong with this machine or these settings, and what to do; exit code 1 for failures");
  AddEngineFlags(*command, options->engine);
  command->add_option("--batch", options->batch, "rows of a step in the short run of --model")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "steps of the short run")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON");
  // For tests.
  command->add_option("--root", options->root, "where /proc and /sys lie")->group("");
  command->add_option("--fault", options->fault, "break the device on purpose")->group("");
  command->callback([options, &result] { result = Doctor(*options); });
}

}  // namespace comoe::cli
