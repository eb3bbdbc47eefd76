// Probe: do copies and compute run at the same time, and if not, why?
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor_probes.h"
#include "cli/lane_bench.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

struct Words {
  Severity severity;
  absl::string_view cause;
  absl::string_view remedy;
};

Words WordsFor(OverlapCause cause) {
  switch (cause) {
    case OverlapCause::kNone:
      return {Severity::kOk, "copies and compute run at the same time", ""};
    case OverlapCause::kPageableSource:
      return {Severity::kFailure, "cause: pageable source: a copy holds up whoever queues it",
              "get page-locked memory (link.pinned)"};
    case OverlapCause::kBlockingCopies:
      return {Severity::kFailure, "cause: blocking copies, though their source is page-locked",
              "unset what makes the driver synchronous (profilers, CUDA_LAUNCH_BLOCKING, debuggers)"};
    case OverlapCause::kBlockingLaunches:
      return {Severity::kFinding, "cause: blocking launches: a kernel holds up whoever queues it",
              "unset CUDA_LAUNCH_BLOCKING and leave profilers and debuggers"};
    case OverlapCause::kOneStream:
      break;
  }
  return {
      Severity::kFailure, "cause: one stream: the device takes copies and kernels in one order",
      "use no default stream: no legacy stream in other libraries, CUDA_DEVICE_MAX_CONNECTIONS above 1, no "
      "time-slicing of the card (MPS, vGPU)"};
}

}  // namespace

absl::Status ProbeOverlap(DoctorContext& context) {
  if (context.device == nullptr) {
    return absl::OkStatus();
  }
  if (context.kernels == nullptr) {
    context.Add("overlap.streams", Severity::kNote, "not measured: no kernels for this device");
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LaneBench> bench,
      LaneBench::Create(*context.device,
                        context.pinned ? device::MemoryKind::kPinned : device::MemoryKind::kHost,
                        context.options.copy_bytes));
  COMOE_ASSIGN_OR_RETURN(const OverlapTimes times, bench->MeasureOverlap(*context.kernels, context.blob));
  const OverlapCause cause = JudgeOverlap(times, context.pinned);
  Words words = WordsFor(cause);
  // The emulated accelerator computes on the thread that queues the work when its clock is a real one.
  if (cause == OverlapCause::kBlockingLaunches && context.engine().emulated_clock == "real") {
    words = {Severity::kNote, "kernels run on the thread that queues them: so does this device", ""};
  }
  Finding& finding = context.Add(
      "overlap.streams", words.severity,
      absl::StrFormat("copy %.3f ms, compute %.3f ms, both %.3f ms (%.0f %% hidden; other order %.0f %%): %s",
                      1e3 * times.copy.seconds, 1e3 * times.compute.seconds, 1e3 * times.copy_first.seconds,
                      100.0 * HiddenShare(times, times.copy_first),
                      100.0 * HiddenShare(times, times.compute_first), words.cause),
      "both about as long as the longer one", std::string(words.remedy));
  finding.values = {{"copy_seconds", times.copy.seconds},
                    {"compute_seconds", times.compute.seconds},
                    {"copy_first_seconds", times.copy_first.seconds},
                    {"compute_first_seconds", times.compute_first.seconds},
                    {"copy_call_seconds", times.copy.call_seconds},
                    {"compute_call_seconds", times.compute.call_seconds}};
  return absl::OkStatus();
}

}  // namespace comoe::cli
