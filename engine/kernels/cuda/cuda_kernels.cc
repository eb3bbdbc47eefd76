#include "engine/kernels/cuda/cuda_kernels.h"

#include <cstddef>
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/kernels/cuda/cuda_launcher.h"
#include "engine/kernels/cuda/cuda_ops.h"
#include "engine/kernels/ops.h"

namespace comoe::kernels {
namespace {

absl::Status EmbedCuda(const EmbedArgs& args, device::Stream& stream) {
  if (args.ids.empty()) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaEmbedArgs launch;
  COMOE_ASSIGN_OR_RETURN(launch.ids, launcher.Stage(args.ids));
  launch.table = args.table.data;
  launch.dtype = DTypeOf(args.table.layout.dtype);
  launch.out = Data(args.out);
  launch.out_stride = args.out.row_stride;
  launch.rows = args.out.rows;
  launch.cols = args.out.cols;
  return launcher.Launch(&CudaLaunchTable::embed, launch, "embed");
}

absl::Status RmsNormCuda(const RmsNormArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaRmsNormArgs launch;
  launch.x = Data(args.x);
  launch.x_stride = args.x.row_stride;
  if (args.add.data != nullptr) {
    launch.add = Data(args.add);
    launch.add_stride = args.add.row_stride;
    launch.sum = Data(args.x);
    launch.sum_stride = args.x.row_stride;
  }
  launch.weight = args.weight.data();
  launch.y = Data(args.y);
  launch.y_stride = args.y.row_stride;
  launch.mapped_y = Data(args.host_y);
  launch.mapped_y_stride = args.host_y.row_stride;
  launch.rows = args.x.rows;
  launch.width = static_cast<std::int64_t>(args.weight.size());
  launch.groups = args.groups;
  launch.epsilon = args.epsilon;
  return launcher.Launch(&CudaLaunchTable::rms_norm, launch, "rms_norm");
}

template <CudaPrecision kPrecision>
absl::Status MatMulCuda(const MatMulArgs& args, device::Stream& stream) {
  if (args.w.layout.order != tensor::MatrixOrder::kRows) {
    return absl::InvalidArgumentError("MatMul: a matrix in panels; the kernels of this device read rows");
  }
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaMatMulArgs launch;
  launch.x = Data(args.x);
  launch.x_stride = args.x.row_stride;
  launch.w = args.w.data;
  launch.dtype = DTypeOf(args.w.layout.dtype);
  launch.bias = args.bias.empty() ? nullptr : args.bias.data();
  launch.y = Data(args.y);
  launch.y_stride = args.y.row_stride;
  launch.rows = args.x.rows;
  launch.n = args.w.layout.n;
  launch.k = args.w.layout.k;
  launch.precision = kPrecision;
  if (launch.rows > kCudaFewRows) {
    launch.workspace_bytes = CudaMatMulWorkspaceBytes(launch.rows, launch.k, kPrecision);
    COMOE_ASSIGN_OR_RETURN(launch.workspace, launcher.stream().Scratch(launch.workspace_bytes));
    launch.blas = launcher.Blas();
  }
  return launcher.Launch(&CudaLaunchTable::matmul, launch, "matmul");
}

absl::Status HeadsCuda(const HeadsArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaHeadsArgs launch;
  launch.x = Data(args.x);
  launch.x_stride = args.x.row_stride;
  launch.rows = args.x.rows;
  launch.heads = args.heads + args.kv_heads;
  launch.first_heads = args.heads;
  launch.head_dim = args.x.cols / launch.heads;
  launch.weight = args.query_norm.empty() ? nullptr : args.query_norm.data();
  launch.second_weight = args.key_norm.empty() ? nullptr : args.key_norm.data();
  launch.epsilon = args.epsilon;
  launch.cos = Data(args.cos);
  launch.cos_stride = args.cos.row_stride;
  launch.sin = Data(args.sin);
  launch.sin_stride = args.sin.row_stride;
  return launcher.Launch(&CudaLaunchTable::heads, launch, "heads");
}

absl::Status RopeCuda(const RopeArgs& args, device::Stream& stream) {
  HeadsArgs heads;
  heads.x = args.x;
  heads.heads = args.heads;
  heads.cos = args.cos;
  heads.sin = args.sin;
  return HeadsCuda(heads, stream);
}

absl::Status AddCuda(const AddArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaAddArgs launch;
  launch.x = Data(args.x);
  launch.x_stride = args.x.row_stride;
  launch.y = Data(args.y);
  launch.y_stride = args.y.row_stride;
  launch.rows = args.x.rows;
  launch.cols = args.x.cols;
  return launcher.Launch(&CudaLaunchTable::add, launch, "add");
}

absl::Status ClampCuda(const ClampArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaClampArgs launch;
  launch.x = Data(args.x);
  launch.x_stride = args.x.row_stride;
  launch.rows = args.x.rows;
  launch.cols = args.x.cols;
  launch.limit = args.limit;
  return launcher.Launch(&CudaLaunchTable::clamp, launch, "clamp");
}

absl::Status TopLogitsCuda(const TopLogitsArgs& args, device::Stream& stream) {
  static_assert(kMostTopLogits == kCudaMaxTopK && kMostTopLogitsVocab == kCudaMaxTopKVocab);
  static_assert(TopLogitsScratchBytes(1, 1) == CudaTopKWorkspaceBytes(1, 1));
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaTopKArgs launch;
  launch.logits = Data(args.logits);
  launch.logits_stride = args.logits.row_stride;
  launch.rows = args.logits.rows;
  launch.vocab = args.logits.cols;
  launch.k = args.k;
  launch.ids = args.ids.data();
  launch.values = args.values.data();
  launch.workspace = args.scratch.data();
  launch.workspace_bytes = args.scratch.size();
  return launcher.Launch(&CudaLaunchTable::top_k, launch, "top_k");
}

// Two launches beside a copy of 50 GB/s and a scan of the host's; more so where k is large.
constexpr std::int64_t kTopLogitsFrom = std::int64_t{1} << 16;

template <CudaPrecision kPrecision>
constexpr KernelTable MakeTable(const char* name) {
  return {
      .name = name,
      .embed = EmbedCuda,
      .rms_norm = RmsNormCuda,
      .matmul = MatMulCuda<kPrecision>,
      .rope = RopeCuda,
      .append_kv = AppendKvCuda,
      .attention = AttentionCuda<kPrecision>,
      .moe_gate = MoeGateCuda,
      .expert_ffn = ExpertFfnCuda<kPrecision>,
      .moe_combine = MoeCombineCuda,
      .add = AddCuda,
      .clamp = ClampCuda,
      .heads = HeadsCuda,
      .prepare_sequences = PrepareSequencesCuda,
      .moe_resident = MoeResidentCuda<kPrecision>,
      .top_logits = TopLogitsCuda,
      .top_logits_from = kTopLogitsFrom,
      .rms_norm_adds = true,
      .reaches_host = true,
  };
}

}  // namespace

const KernelTable& CudaKernels(CudaPrecision precision) {
  static constexpr KernelTable kExact = MakeTable<CudaPrecision::kExact>("cuda/exact");
  static constexpr KernelTable kBf16 = MakeTable<CudaPrecision::kBf16>("cuda/bf16");
  return precision == CudaPrecision::kBf16 ? kBf16 : kExact;
}

}  // namespace comoe::kernels
