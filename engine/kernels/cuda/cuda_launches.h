// The launch functions behind CudaLaunches(), one or a few a file. See cuda_launch.h for what they do.
#pragma once

#include "engine/kernels/cuda/cuda_launch.h"

namespace comoe::kernels {

int LaunchEmbed(const CudaEmbedArgs& args, void* stream);
int LaunchRmsNorm(const CudaRmsNormArgs& args, void* stream);
int LaunchHeads(const CudaHeadsArgs& args, void* stream);
int LaunchAdd(const CudaAddArgs& args, void* stream);
int LaunchClamp(const CudaClampArgs& args, void* stream);
int LaunchMatMul(const CudaMatMulArgs& args, void* stream);
int LaunchAppendKv(const CudaAppendKvArgs& args, void* stream);
int LaunchAttentionDecode(const CudaAttentionArgs& args, void* stream);
int LaunchAttentionPrefill(const CudaAttentionArgs& args, void* stream);
int LaunchGate(const CudaGateArgs& args, void* stream);
int LaunchDispatch(const CudaDispatchArgs& args, void* stream);
int LaunchExpertFfn(const CudaExpertFfnArgs& args, void* stream);
int LaunchCombine(const CudaCombineArgs& args, void* stream);
int LaunchTopK(const CudaTopKArgs& args, void* stream);
int CreateBlas(void** blas);
void DestroyBlas(void* blas);

}  // namespace comoe::kernels
