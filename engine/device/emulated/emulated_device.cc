#include "engine/device/emulated/emulated_device.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/bytes.h"
#include "engine/device/emulated/describe.h"
#include "engine/device/emulated/real_device.h"
#include "engine/device/emulated/virtual_device.h"

namespace comoe::device {
namespace {

// Large page-locked copies, as measured on such machines or a little below the link's limit; disks as old as
// their link.
struct Preset {
  absl::string_view name;
  double link_bytes_per_second;
  double pageable_bytes_per_second;
  double disk_bytes_per_second;
};
constexpr std::array<Preset, 6> kPresets = {{{"pcie3x16", 12.5e9, 6e9, 3e9},
                                             {"pcie4x16", 25e9, 8e9, 6e9},
                                             {"pcie5x16", 50e9, 10e9, 10e9},
                                             {"pcie3x8", 6.25e9, 4e9, 3e9},
                                             {"pcie4x8", 12.5e9, 6e9, 6e9},
                                             {"pcie5x8", 25e9, 8e9, 10e9}}};
constexpr std::array<absl::string_view, kPresets.size()> kPresetNames = {kPresets[0].name, kPresets[1].name,
                                                                         kPresets[2].name, kPresets[3].name,
                                                                         kPresets[4].name, kPresets[5].name};

absl::Status CheckRates(const EmulatedRates& rates) {
  const std::pair<absl::string_view, double> above_0[] = {
      {"link_bytes_per_second", rates.link_bytes_per_second},
      {"pageable_bytes_per_second", rates.pageable_bytes_per_second},
      {"device_bytes_per_second", rates.device_bytes_per_second},
      {"device_flops_per_second", rates.device_flops_per_second},
      {"host_bytes_per_second", rates.host_bytes_per_second},
      {"host_flops_per_second", rates.host_flops_per_second},
      {"host_copy_bytes_per_second", rates.host_copy_bytes_per_second},
      {"disk_bytes_per_second", rates.disk_bytes_per_second}};
  for (const auto& [name, rate] : above_0) {
    if (!(rate > 0.0)) {
      return absl::InvalidArgumentError(absl::StrCat("emulated: ", name, " is ", rate, ", not above 0"));
    }
  }
  const std::pair<absl::string_view, double> not_below_0[] = {
      {"link_latency_seconds", rates.link_latency_seconds},
      {"device_launch_seconds", rates.device_launch_seconds},
      {"device_seconds_per_expert", rates.device_seconds_per_expert.value_or(0.0)},
      {"host_seconds_per_expert", rates.host_seconds_per_expert.value_or(0.0)},
      {"dense_seconds_per_kernel", rates.dense_seconds_per_kernel.value_or(0.0)}};
  for (const auto& [name, seconds] : not_below_0) {
    if (!(seconds >= 0.0)) {
      return absl::InvalidArgumentError(absl::StrCat("emulated: ", name, " is ", seconds, ", below 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EmulatedRates> PresetRates(absl::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) {
      EmulatedRates rates;
      rates.link_bytes_per_second = preset.link_bytes_per_second;
      rates.pageable_bytes_per_second = preset.pageable_bytes_per_second;
      rates.disk_bytes_per_second = preset.disk_bytes_per_second;
      return rates;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no emulated link is called '", name, "'; there are ", absl::StrJoin(kPresetNames, ", ")));
}

absl::Span<const absl::string_view> PresetNames() { return kPresetNames; }

std::string DescribeEmulated(const EmulatedOptions& options) {
  const EmulatedRates& rates = options.rates;
  std::string text = absl::StrFormat(
      "emulated accelerator, %s: link %.4g GB/s (pageable %.4g), device %.4g GB/s %.4g TFLOP/s, host %.4g "
      "GB/s %.4g TFLOP/s, results computed by %d threads",
      options.real_clock ? "real clock: copies take emulated time, kernels what the host takes"
                         : "virtual clock: times are simulated, not measured",
      rates.link_bytes_per_second / 1e9, rates.pageable_bytes_per_second / 1e9,
      rates.device_bytes_per_second / 1e9, rates.device_flops_per_second / 1e12,
      rates.host_bytes_per_second / 1e9, rates.host_flops_per_second / 1e12, options.threads);
  if (options.device_bytes != 0) {
    absl::StrAppend(&text, ", ", base::FormatBytes(options.device_bytes), " of device memory");
  }
  if (options.pinned_bytes != 0) {
    absl::StrAppend(&text, ", ", base::FormatBytes(options.pinned_bytes), " of page-locked memory");
  }
  return text;
}

absl::Status NeverEndsError() {
  return absl::InternalError("emulated: waited without a limit for a copy that never ends");
}

absl::Status NotInTimeError(absl::Duration limit) {
  return absl::DeadlineExceededError(
      absl::StrCat("emulated: what was waited for has not happened within ", absl::FormatDuration(limit)));
}

absl::StatusOr<std::unique_ptr<Device>> MakeEmulatedDevice(EmulatedOptions options) {
  if (const absl::Status status = CheckRates(options.rates); !status.ok()) {
    return status;
  }
  if (options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("emulated: ", options.threads, " compute threads"));
  }
  if (options.real_clock && options.serial != EmulatedSerial::kNone) {
    return absl::InvalidArgumentError("emulated: streams in one order are for the virtual clock");
  }
  return options.real_clock ? MakeRealDevice(std::move(options)) : MakeVirtualDevice(std::move(options));
}

}  // namespace comoe::device
