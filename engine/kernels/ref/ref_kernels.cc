#include "engine/kernels/ref/ref_kernels.h"

namespace comoe::kernels {

const KernelTable& RefKernels() {
  static constexpr KernelTable kTable = {
      .name = "ref",
      .embed = EmbedRef,
      .rms_norm = RmsNormRef,
      .matmul = MatMulRef,
      .rope = RopeRef,
      .append_kv = AppendKvRef,
      .attention = AttentionRef,
      .moe_gate = MoeGateRef,
      .expert_ffn = ExpertFfnRef,
      .moe_combine = MoeCombineRef,
      .add = AddRef,
      .clamp = ClampRef,
  };
  return kTable;
}

}  // namespace comoe::kernels
