// `comoe trace`: recorded routing, and what can be learnt from it without a model.
#include "cli/trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command.h"
#include "cli/finite.h"
#include "engine/base/status_macros.h"
#include "engine/device/emulated/emulated_device.h"

namespace comoe::cli {
namespace {

// numpy.random.default_rng(0).permutation(96), as a constant: the study's order of its 96 sequences.
constexpr std::array<std::int32_t, 96> kStudyOrder = {
    36, 87, 5,  13, 52, 20, 93, 34, 50, 27, 16, 94, 11, 10, 66, 8,  82, 9,  90, 19, 89, 75, 65, 67,
    39, 4,  25, 55, 71, 62, 23, 44, 42, 53, 80, 68, 60, 15, 30, 2,  35, 43, 17, 70, 28, 83, 18, 72,
    3,  1,  57, 24, 64, 21, 47, 0,  6,  86, 45, 22, 26, 51, 37, 81, 49, 74, 88, 91, 40, 61, 12, 32,
    92, 46, 58, 14, 73, 38, 84, 31, 85, 48, 77, 76, 7,  63, 69, 78, 59, 54, 29, 41, 56, 33, 79, 95};

}  // namespace

TraceSplit SplitInHalves(const routing::Trace& trace) {
  TraceSplit split;
  const std::size_t half = trace.sequences.size() / 2;
  for (std::size_t s = 0; s < trace.sequences.size(); ++s) {
    (s < half ? split.history : split.judged).push_back(static_cast<std::int32_t>(s));
  }
  return split;
}

absl::StatusOr<TraceSplit> SplitAsStudy(const routing::Trace& trace) {
  if (trace.sequences.size() != kStudyOrder.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--protocol study is for traces of ", kStudyOrder.size(),
                                                   " sequences; this one has ", trace.sequences.size()));
  }
  constexpr std::size_t kHalf = kStudyOrder.size() / 2;
  return TraceSplit{{kStudyOrder.begin(), kStudyOrder.begin() + kHalf},
                    {kStudyOrder.begin() + kHalf, kStudyOrder.end()}};
}

absl::StatusOr<std::vector<double>> ParseShareList(const std::string& flag, const std::string& text) {
  std::vector<double> shares;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double share = 0.0;
    if (!absl::SimpleAtod(part, &share) || !(share > 0.0 && share <= 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": '", part, "' is no share in (0, 1]"));
    }
    shares.push_back(share);
  }
  return shares;
}

void AddRateFlags(CLI::App& app, RateFlags& flags) {
  app.add_option(
      "--link", flags.link,
      "rates of an emulated accelerator on this link: pcie3x16, pcie4x16, pcie5x8, ... (default: by "
      "--copy-computes)");
  app.add_option("--copy-computes", flags.copy_computes,
                 "a copy takes as long as this many experts on the device")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--host-computes", flags.host_computes,
                 "an expert on the host takes as long as this many on the device")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--dense-computes", flags.dense_computes,
                 "all else of a layer takes as long as this many experts on the device")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  app.add_flag("--host-lane", flags.host_lane, "misses may be computed on the host");
  app.add_option("--expert-bytes", flags.expert_bytes, "bytes of an expert (default: the trace's)");
}

absl::StatusOr<routing::ReplayRates> MakeRates(const RateFlags& flags, const routing::Trace& trace) {
  routing::ReplayRates rates;
  if (flags.link.empty()) {
    rates.copy_seconds = flags.copy_computes;
    rates.device_seconds = 1.0;
    rates.dense_seconds = flags.dense_computes;
    rates.host_seconds = flags.host_lane ? flags.host_computes : 0.0;
    return rates;
  }
  const std::uint64_t bytes = flags.expert_bytes > 0 ? flags.expert_bytes : trace.header.expert_bytes;
  if (bytes == 0) {
    return absl::InvalidArgumentError(
        "--link needs the size of an expert, which this trace does not say: give --expert-bytes N or --model "
        "DIR");
  }
  COMOE_ASSIGN_OR_RETURN(const device::EmulatedRates preset, device::PresetRates(flags.link));
  const auto size = static_cast<double>(bytes);
  rates.copy_seconds = preset.link_latency_seconds + size / preset.link_bytes_per_second;
  rates.device_seconds = preset.device_launch_seconds + size / preset.device_bytes_per_second;
  rates.dense_seconds = flags.dense_computes * rates.device_seconds;
  rates.host_seconds = flags.host_lane ? size / preset.host_bytes_per_second : 0.0;
  // Two operations a weight of two bytes.
  rates.host_seconds_per_row = size / preset.host_flops_per_second;
  return rates;
}

void PrintForecasts(const std::string& title, const std::vector<routing::ForecastQuality>& rows) {
  std::printf("%s, sets of\n%-15s %5s", title.c_str(), "predictor", "ahead");
  for (const std::int32_t width : rows.front().widths) {
    std::printf("  %13d", width);
  }
  std::printf("\n");
  for (const routing::ForecastQuality& row : rows) {
    std::printf("%-15s %5d", row.name.c_str(), row.distance);
    for (std::size_t w = 0; w < row.widths.size(); ++w) {
      std::printf("   %.3f / %.3f", row.recall[w], row.precision[w]);
    }
    std::printf("\n");
  }
}

void AddTraceCommand(CLI::App& app, absl::Status& result) {
  CLI::App* command =
      app.add_subcommand("trace", "record routing, and replay policies and predictors over it");
  command->require_subcommand(1);
  AddTraceRecordCommand(*command, result);
  AddTraceImportCommand(*command, result);
  AddTraceReplayCommand(*command, result);
  AddTraceStatsCommand(*command, result);
  AddTraceFitCommand(*command, result);
  AddTraceStudyCommand(*command, result);
}

}  // namespace comoe::cli
