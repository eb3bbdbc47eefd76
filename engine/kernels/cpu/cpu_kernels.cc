#include "engine/kernels/cpu/cpu_kernels.h"

#include <cstdint>
#include <vector>

#include "engine/kernels/cpu/plain_kernels.h"
#include "engine/kernels/cpu/targets.h"
#include "hwy/highway.h"

namespace comoe::kernels {
namespace {

// Highway names its targets, but a table wants a name that lives for ever.
const char* TableName(std::int64_t target) {
  switch (target) {
    case HWY_AVX3:
      return "cpu/AVX3";
    case HWY_AVX2:
      return "cpu/AVX2";
    case HWY_SSE4:
      return "cpu/SSE4";
    case HWY_EMU128:
      return "cpu/EMU128";
    default:
      return "cpu/SCALAR";
  }
}

std::vector<KernelTable> MakeTables() {
  std::vector<KernelTable> tables;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    tables.push_back({
        .name = TableName(target),
        .embed = EmbedCpu,
        .rms_norm = RmsNormForTarget(target),
        .matmul = MatMulForTarget(target),
        .rope = RopeForTarget(target),
        .append_kv = AppendKvCpu,
        .attention = AttentionForTarget(target),
        .moe_gate = MoeGateForTarget(target),
        .expert_ffn = ExpertFfnForTarget(target),
        .moe_combine = MoeCombineForTarget(target),
        .add = AddForTarget(target),
        .clamp = ClampForTarget(target),
    });
  }
  return tables;
}

}  // namespace

absl::Span<const KernelTable> AllCpuKernels() {
  static const std::vector<KernelTable>& tables = *new std::vector<KernelTable>(MakeTables());
  return tables;
}

const KernelTable& CpuKernels() { return AllCpuKernels().front(); }

}  // namespace comoe::kernels
