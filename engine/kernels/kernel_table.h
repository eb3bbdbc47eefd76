// Which implementation of each operation a model runs: obvious loops (the judge), or the fastest for a
// device. A plain table of functions, chosen once and passed on; it can be printed, and one entry can be
// swapped.
//
// The entries take arguments that the checked functions of the op headers have validated: call those.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/device/device.h"

namespace comoe::kernels {

struct EmbedArgs;
struct RmsNormArgs;
struct MatMulArgs;
struct RopeArgs;
struct PrepareSequencesArgs;
struct AppendKvArgs;
struct AttentionArgs;
struct MoeGateArgs;
struct ExpertFfnArgs;
struct MoeCombineArgs;
struct MoeResidentArgs;
struct TopLogitsArgs;
struct AddArgs;
struct ClampArgs;
struct HeadsArgs;

struct KernelTable {
  const char* name = "";  // "ref", "cpu/AVX3", ...
  absl::Status (*embed)(const EmbedArgs&, device::Stream&) = nullptr;
  absl::Status (*rms_norm)(const RmsNormArgs&, device::Stream&) = nullptr;
  absl::Status (*matmul)(const MatMulArgs&, device::Stream&) = nullptr;
  absl::Status (*rope)(const RopeArgs&, device::Stream&) = nullptr;
  absl::Status (*append_kv)(const AppendKvArgs&, device::Stream&) = nullptr;
  absl::Status (*attention)(const AttentionArgs&, device::Stream&) = nullptr;
  absl::Status (*moe_gate)(const MoeGateArgs&, device::Stream&) = nullptr;
  absl::Status (*expert_ffn)(const ExpertFfnArgs&, device::Stream&) = nullptr;
  absl::Status (*moe_combine)(const MoeCombineArgs&, device::Stream&) = nullptr;
  absl::Status (*add)(const AddArgs&, device::Stream&) = nullptr;
  absl::Status (*clamp)(const ClampArgs&, device::Stream&) = nullptr;
  // nullptr: as norms and rotations, one after the other.
  absl::Status (*heads)(const HeadsArgs&, device::Stream&) = nullptr;
  // nullptr where kernels read the host's lists.
  absl::Status (*prepare_sequences)(const PrepareSequencesArgs&, device::Stream&) = nullptr;
  // nullptr where the host says what each expert computes.
  absl::Status (*moe_resident)(const MoeResidentArgs&, device::Stream&) = nullptr;
  // nullptr where the host sees all logits anyway; else worth it from so many logits of a step on.
  absl::Status (*top_logits)(const TopLogitsArgs&, device::Stream&) = nullptr;
  std::int64_t top_logits_from = 0;
  bool rms_norm_adds = false;  // its norm makes RmsNormArgs::add; else that is an op of its own
  bool reaches_host = false;   // kernels of a device apart read and write page-locked host memory
};

// Plain loops on one thread, float32 accumulation.
const KernelTable& RefKernels();
// Highway kernels for the best instruction set this processor has, on the CPU stream's thread pool. Every
// entry gives, for a row, the same bits whatever other rows there are and whatever the number of threads.
const KernelTable& CpuKernels();

}  // namespace comoe::kernels
