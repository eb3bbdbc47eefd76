#include "cli/engine_options.h"

#include <cmath>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/cuda_options.h"
#include "cli/given_flags.h"
#include "cli/offload_options.h"
#include "cli/output_path.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

// The cpu device computes every expert where it lies.
absl::Status CheckCpuOptions(const EngineOptions& options) {
  if (options.policy != "resident" && !options.policy.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        "--policy ", options.policy,
        " needs a device apart from the host (--device cuda or emulated); on the cpu device every expert is "
        "computed where it lies: use resident"));
  }
  std::vector<std::string> of_tiers;
  const auto note = [&of_tiers](const char* flag, bool given) {
    if (given) {
      of_tiers.push_back(flag);
    }
  };
  note("--expert-cache-bytes", !options.expert_cache_bytes.empty());
  note("--expert-cache-fraction", options.expert_cache_fraction >= 0.0);
  note("--pinned-bytes", !options.pinned_bytes.empty());
  note("--page-lock off", options.page_lock != "on");
  note("--host-lane", !options.host_lane.empty());
  note("--tiers exclusive", options.tiers != "inclusive");
  note("--expert-file", !options.expert_file.empty());
  if (of_tiers.empty()) {
    return absl::OkStatus();
  }
  const bool one = of_tiers.size() == 1;
  return absl::UnimplementedError(absl::StrCat(
      absl::StrJoin(of_tiers, " and "), one ? " needs" : " need",
      " a device apart from the host (--device cuda or emulated): the cpu device has no tiers, so leave ",
      one ? "it" : "them", " out"));
}

}  // namespace

std::string PolicyOf(const EngineOptions& options) {
  return !options.policy.empty() ? options.policy : (options.device == "cpu" ? "resident" : "hub");
}

absl::Status CheckEngineOptions(const EngineOptions& options) {
  if (options.model.empty()) {
    return absl::InvalidArgumentError("which model? Give --model DIR, a checkpoint folder");
  }
  if (std::isnan(options.expert_cache_fraction)) {
    return absl::InvalidArgumentError("--expert-cache-fraction is nan: it lies in (0, 1]");
  }
  COMOE_RETURN_IF_ERROR(CheckGivenFlags(options));
  COMOE_RETURN_IF_ERROR(HubParametersOf(options).status());
  if (!options.timeline.empty()) {
    COMOE_RETURN_IF_ERROR(CheckOutputPath("--timeline", options.timeline));
  }
  if (options.device == "cpu") {
    COMOE_RETURN_IF_ERROR(CheckCpuOptions(options));
  } else {
    COMOE_RETURN_IF_ERROR(CheckOffloadOptions(options));
    if (options.page_lock != "on" && options.policy == "resident") {
      return absl::InvalidArgumentError(
          "--page-lock off shows what copies of experts from ordinary memory cost, and --policy resident "
          "copies none: choose another policy");
    }
  }
  if (options.max_batch_tokens < 1 || options.max_batch_tokens > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-batch-tokens is ", options.max_batch_tokens, ": it lies in [1, 65536]"));
  }
  if (options.max_sequences < 1 || options.max_sequences > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-sequences is ", options.max_sequences, ": it lies in [1, 4096]"));
  }
  if (options.threads < 0 || options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads is ", options.threads, ": it lies in [0, 1024], 0 for all"));
  }
  return absl::OkStatus();
}

void AddEngineFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--model", options.model, "checkpoint folder (config.json, *.safetensors, tokenizer.json)");
  if (options.device == "cpu") {
    options.device = "auto";
  }
  app.add_option(
         "--device", options.device,
         "cpu, cuda, auto (cuda where there is one), or emulated: a simulated accelerator, for tests and "
         "studies")
      ->check(CLI::IsMember({"auto", "cpu", "emulated", "cuda"}))
      ->capture_default_str();
  app.parse_complete_callback([&app, &options] {
    NoteGivenFlags(app, options);
    ChooseDevice(options);
    WarnOfIdleFlags(options);
  });
  app.add_option("--cuda-device", options.cuda_device, "which NVIDIA card")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option(
         "--cuda-graphs", options.cuda_graphs,
         "on | off: what a step does between two decisions is launched on an NVIDIA card as one graph")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_flag("--nvtx", options.nvtx,
               "name steps, layers and stages in the timeline of a profiler (nsys) of an NVIDIA card");
  app.add_option("--cuda-plugin", options.cuda_plugin,
                 "libcomoe_cuda.so (default: beside the program, or in ../lib)");
  app.add_option(
         "--activations", options.activations,
         "what matrix products on an NVIDIA card make of activations: f32, or bf16: faster, and not exact")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--policy", options.policy,
                 "how experts are placed and moved: naive, static, lru, simple, hub, resident (default: "
                 "resident on the cpu and where a card has room for all, else hub)");
  app.add_option("--threads", options.threads, "compute threads, 0 for all that affinity and cgroup allow")
      ->capture_default_str();
  app.add_option("--kernels", options.kernels, "best for this processor, or the reference loops")
      ->check(CLI::IsMember({"best", "ref"}))
      ->capture_default_str();
  AddKvFlags(app, options);
  app.add_option("--expert-cache-fraction", options.expert_cache_fraction,
                 "share of the experts in device slots (needs a device apart from the host)");
  app.add_option("--expert-cache-bytes", options.expert_cache_bytes,
                 "the same in bytes (needs a device apart from the host)");
  app.add_option("--pinned-bytes", options.pinned_bytes,
                 "page-locked host memory for experts (needs a device apart from the host)");
  app.add_option(
         "--page-lock", options.page_lock,
         "on | off: the memory that experts are copied to the device from; off is slow, and shows what "
         "page-locking is worth")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option("--host-lane", options.host_lane,
                 "on | off: may the CPU compute missed experts (needs a device apart from the host)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option(
         "--tiers", options.tiers,
         "inclusive: what is on the device also lies on the host; exclusive: an expert lies in one tier only")
      ->check(CLI::IsMember({"inclusive", "exclusive"}))
      ->capture_default_str();
  app.add_option("--expert-file", options.expert_file,
                 "packed file for the experts that host memory has no room for; made when it is not there");
  app.add_option("--hub-mode", options.hub_mode,
                 "policy hub: latency prefetches more, throughput only the near certain")
      ->check(CLI::IsMember({"latency", "throughput"}))
      ->capture_default_str();
  app.add_option("--hub", options.hub_set, "policy hub: NAME=VALUE,...; docs/TUNING.md lists the names");
  app.add_option("--hub-state", options.hub_state,
                 "policy hub: starts with what this file says was learnt; serve writes it when it drains");
  app.add_option("--hot-trace", options.hot_trace,
                 "routing trace (.npz) that says which experts are hot (default: the model's own)");
  app.add_option("--emulated", options.emulated,
                 "rates of the emulated accelerator: pcie3x16, pcie4x16, pcie5x8, ...")
      ->capture_default_str();
  app.add_option("--emulated-clock", options.emulated_clock, "virtual: times are calculated; real: they pass")
      ->check(CLI::IsMember({"virtual", "real"}))
      ->capture_default_str();
  app.add_option("--timeline", options.timeline,
                 "write what every lane does during the first steps, as trace-event JSON (Perfetto)");
  app.add_option("--timeline-steps", options.timeline_steps, "how many steps")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--widen", options.widen,
                 "HIDDEN,INTERMEDIATE: embed the model in a larger one while loading");
  app.add_option("--max-batch-tokens", options.max_batch_tokens,
                 "rows of a step: prompts are cut into chunks of this")
      ->capture_default_str();
  app.add_option("--max-sequences", options.max_sequences, "sequences whose state is kept at once")
      ->capture_default_str();
  app.add_flag("--quiet", options.quiet, "no progress on stderr");
}

void AddKvFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--kv-bytes", options.kv_bytes,
                 "memory for keys and values, like 2GiB (default: a whole context for each sequence)");
  app.add_option("--kv-dtype", options.kv_dtype,
                 "how keys and values are stored: f32, or f16 in half the memory and not exact")
      ->check(CLI::IsMember({"f32", "f16"}))
      ->capture_default_str();
}

}  // namespace comoe::cli
