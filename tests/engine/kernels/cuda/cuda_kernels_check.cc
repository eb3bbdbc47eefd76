// Compares every launch of the CUDA kernels with the reference kernels, over a sweep of shapes.
//   cuda_kernels_check [--quick]      exit status 1 when anything failed
// COMOE_TEST_SEED sets the seed of all inputs.
#include <cstring>

#include "tests/engine/kernels/cuda/gpu_check.h"

int main(int argc, char** argv) {
  using namespace comoe::kernels;  // NOLINT(google-build-using-namespace): a program of one page
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  cudaStream_t stream = nullptr;
  MustRun(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  Checker checker(stream);
  CheckRows(checker, quick);
  CheckMatMul(checker, quick);
  CheckMoe(checker, quick);
  CheckExpertFfn(checker, quick);
  CheckAttention(checker, quick);
  MustRun(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("%d checks, %d failed\n", checker.checked(), checker.failed());
  return checker.failed() == 0 ? 0 : 1;
}
