// The flags that choose a model, a device and their memory, shared by every subcommand that runs one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/api/expert_director.h"
#include "engine/base/metrics_sink.h"
#include "engine/device/device.h"
#include "engine/device/emulated/emulated_device.h"
#include "engine/kernels/kernel_table.h"
#include "scheduler/routing/tier_shape.h"

namespace CLI {
class App;  // CLI11 takes seconds to compile: only who registers flags includes it
}  // namespace CLI

namespace comoe::cli {

class EngineKeep;

struct EngineOptions {
  std::string model;                    // a checkpoint folder
  std::string device = "cpu";           // cpu | emulated | cuda; of flags also auto (ChooseDevice)
  std::string device_reason;            // why it is not another, where that was to be found out
  std::string activations = "f32";      // f32 | bf16: what products on a GPU make of them
  std::string cuda_plugin;              // "": libcomoe_cuda.so, beside the program or in ../lib
  int cuda_device = 0;                  // which card
  bool nvtx = false;                    // named ranges for a profiler of the card
  std::string cuda_graphs = "on";       // on | off
  std::string policy;                   // "": resident on the cpu and where a card has room for all, else hub
  int threads = 0;                      // 0: as many as affinity and cgroup allow
  std::string kv_bytes;                 // "": from context and sequences
  std::string kv_dtype = "f32";         // f32 | f16
  std::string expert_cache_bytes;       // "": not set
  std::string pinned_bytes;             // "": not set
  double expert_cache_fraction = -1.0;  // < 0: not set
  std::string page_lock = "on";         // on | off: experts that are copied to the device
  std::string host_lane;                // "", on, off
  std::string tiers = "inclusive";      // inclusive | exclusive
  std::string expert_file;              // "": experts that are not pinned lie in memory, not on disk
  std::string hub_mode = "latency";     // latency | throughput
  std::string hub_set;                  // "name=value,...": single parameters of the hub
  std::string hub_state;                // "": what the hub learns is forgotten
  std::string hot_trace;                // routing_trace.npz: what `static` keeps
  std::string emulated = "pcie4x16";    // rates of the emulated accelerator
  std::string emulated_clock = "virtual";  // virtual | real
  std::string timeline;                    // "": none
  std::int64_t timeline_steps = 64;
  std::string widen;             // "H,I": widen in memory while loading
  std::string kernels = "best";  // best | ref
  std::int64_t max_batch_tokens = 512;
  std::int64_t max_sequences = 1;
  bool quiet = false;  // no progress lines

  // Not flags themselves. Flags on the command line that not every device or policy has (given_flags.h).
  std::vector<std::string> given;
  std::vector<std::string> given_for_card;  // of them, those that are idle where --device auto finds no card
  // Hears every layer's routing on the engine thread.
  std::function<void(const api::RoutingObservation&)> routing_observer;
  // Puts a director around the policy's, which decides: for recording.
  std::function<std::unique_ptr<api::ExpertDirector>(std::unique_ptr<api::ExpertDirector>)> wrap_director;
  base::MetricsSink* metrics = nullptr;  // outlives the engine
  // --device cuda: what an engine before has left there is used, and left there again. nullptr: nothing is.
  std::shared_ptr<EngineKeep> keep;
  // Studies on the emulated accelerator: a copy takes as long as `copy_computes` experts on the device (0: by
  // the preset's rates), an expert on the host as `host_computes`, any other kernel as `dense_computes`.
  double copy_computes = 0.0;
  double host_computes = 6.0;
  double dense_computes = 0.1;
  bool refuse_pinned = false;
  device::EmulatedSerial serial = device::EmulatedSerial::kNone;
  absl::Duration copy_limit = absl::Seconds(10);
  // Tests: rates instead of the preset's, faults, a director of their own.
  std::shared_ptr<const device::EmulatedRates> rates;
  std::function<device::CopyFault(const device::CopyRequest&)> copy_faults;
  std::function<std::unique_ptr<api::ExpertDirector>(const routing::TierShape&)> make_director;
  // Tests of --device cuda without a GPU.
  std::function<absl::StatusOr<std::unique_ptr<device::Device>>()> make_device;
  const kernels::KernelTable* device_kernels = nullptr;
};

void AddEngineFlags(CLI::App& app, EngineOptions& options);
// Of these, --kv-bytes and --kv-dtype.
void AddKvFlags(CLI::App& app, EngineOptions& options);

// UNIMPLEMENTED or INVALID_ARGUMENT for flags that cannot be, before anything is loaded.
absl::Status CheckEngineOptions(const EngineOptions& options);

// --policy, or the default of the device.
std::string PolicyOf(const EngineOptions& options);

}  // namespace comoe::cli
