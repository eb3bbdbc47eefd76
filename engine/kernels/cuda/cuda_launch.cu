#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/cuda/cuda_launches.h"

extern "C" const void* comoe_cuda_kernels();

namespace comoe::kernels {

const CudaLaunchTable& CudaLaunches() {
  static constexpr CudaLaunchTable kTable = {
      .embed = LaunchEmbed,
      .rms_norm = LaunchRmsNorm,
      .heads = LaunchHeads,
      .add = LaunchAdd,
      .clamp = LaunchClamp,
      .matmul = LaunchMatMul,
      .append_kv = LaunchAppendKv,
      .attention_decode = LaunchAttentionDecode,
      .attention_prefill = LaunchAttentionPrefill,
      .gate = LaunchGate,
      .dispatch = LaunchDispatch,
      .expert_ffn = LaunchExpertFfn,
      .combine = LaunchCombine,
      .top_k = LaunchTopK,
      .blas_create = CreateBlas,
      .blas_destroy = DestroyBlas,
  };
  return kTable;
}

}  // namespace comoe::kernels

// What the plugin hands to host code (engine/device/cuda/plugin_api.h).
extern "C" const void* comoe_cuda_kernels() { return &comoe::kernels::CudaLaunches(); }
