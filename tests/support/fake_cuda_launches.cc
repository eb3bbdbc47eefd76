#include "tests/support/fake_cuda_launches.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/check.h"
#include "engine/base/thread_pool.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/ops.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_cuda_kernels.h"

namespace comoe::testing {
namespace {

using kernels::RefKernels;
using tensor::TensorView;

constexpr int kInvalidValue = 1;

TensorView View(const float* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  auto* const bytes = reinterpret_cast<std::byte*>(const_cast<float*>(data));
  return {bytes, tensor::DType::kF32, rows, cols, stride, {}};
}

template <typename T>
absl::Span<T> Count(T* data, std::int64_t count) {
  return data == nullptr ? absl::Span<T>() : absl::Span<T>(data, static_cast<std::size_t>(count));
}

tensor::DType DTypeOf(kernels::CudaDType dtype) { return static_cast<tensor::DType>(dtype); }

void MustRun(const absl::Status& status) { COMOE_CHECK(status.ok(), "a launch has arguments that work"); }

// Runs `kRun(args, stream)` when the stream comes to it.
template <auto kRun, class Args>
int Launch(const Args& args, void* stream) {
  FakeLaunch(stream, [args] {
    base::ThreadPool pool(1, "fake-cuda");
    device::CpuStream host(pool);
    kRun(args, host);
  });
  return 0;
}

void Embed(const kernels::CudaEmbedArgs& args, device::Stream& stream) {
  const absl::Span<const std::int32_t> ids = Count(args.ids, args.rows);
  tensor::PackedMatrixView table{static_cast<const std::byte*>(args.table), {}};
  table.layout = {DTypeOf(args.dtype), *std::max_element(ids.begin(), ids.end()) + 1, args.cols,
                  tensor::MatrixOrder::kRows};
  MustRun(RefKernels().embed({ids, table, View(args.out, args.rows, args.cols, args.out_stride)}, stream));
}

void RmsNorm(const kernels::CudaRmsNormArgs& args, device::Stream& stream) {
  const std::int64_t cols = args.groups * args.width;
  const float* x = args.x;
  std::int64_t stride = args.x_stride;
  if (args.add != nullptr) {
    for (std::int64_t t = 0; t < args.rows; ++t) {
      for (std::int64_t i = 0; i < cols; ++i) {
        args.sum[t * args.sum_stride + i] = args.x[t * args.x_stride + i] + args.add[t * args.add_stride + i];
      }
    }
    x = args.sum;
    stride = args.sum_stride;
  }
  kernels::RmsNormArgs ref;
  ref.x = View(x, args.rows, cols, stride);
  ref.weight = Count(args.weight, args.width);
  ref.epsilon = args.epsilon;
  ref.groups = args.groups;
  ref.y = View(args.y, args.rows, cols, args.y_stride);
  MustRun(RefKernels().rms_norm(ref, stream));
  for (std::int64_t t = 0; args.mapped_y != nullptr && t < args.rows; ++t) {
    std::copy_n(ref.y.f32(t), cols, args.mapped_y + t * args.mapped_y_stride);
  }
}

void Heads(const kernels::CudaHeadsArgs& args, device::Stream& stream) {
  const std::int64_t half = args.head_dim / 2;
  kernels::HeadsArgs ref;
  ref.x = View(args.x, args.rows, args.heads * args.head_dim, args.x_stride);
  ref.heads = args.first_heads == 0 ? args.heads : args.first_heads;
  ref.kv_heads = args.heads - ref.heads;
  ref.query_norm = Count(args.weight, args.head_dim);
  ref.key_norm = Count(args.second_weight, args.head_dim);
  ref.epsilon = args.epsilon;
  ref.cos = View(args.cos, args.rows, half, args.cos_stride);
  ref.sin = View(args.sin, args.rows, half, args.sin_stride);
  if (ref.kv_heads > 0) {
    MustRun(kernels::Heads(RefKernels(), ref, stream));
  } else {
    MustRun(RefKernels().rope({ref.x, ref.heads, ref.cos, ref.sin}, stream));
  }
}

void Add(const kernels::CudaAddArgs& args, device::Stream& stream) {
  MustRun(RefKernels().add(
      {View(args.x, args.rows, args.cols, args.x_stride), View(args.y, args.rows, args.cols, args.y_stride)},
      stream));
}

void Clamp(const kernels::CudaClampArgs& args, device::Stream& stream) {
  MustRun(RefKernels().clamp({View(args.x, args.rows, args.cols, args.x_stride), args.limit}, stream));
}

void MatMul(const kernels::CudaMatMulArgs& args, device::Stream& stream) {
  kernels::MatMulArgs ref;
  ref.x = View(args.x, args.rows, args.k, args.x_stride);
  ref.w = {static_cast<const std::byte*>(args.w),
           {DTypeOf(args.dtype), args.n, args.k, tensor::MatrixOrder::kRows}};
  ref.bias = Count(args.bias, args.n);
  ref.y = View(args.y, args.rows, args.n, args.y_stride);
  MustRun(RefKernels().matmul(ref, stream));
}

// The sequences as the reference takes them.
struct Sequences {
  explicit Sequences(const kernels::CudaKv& kv) {
    for (const kernels::CudaSpan& span : Count(kv.spans, kv.num_spans)) {
      const std::int64_t end = std::int64_t{span.start_position} + span.num_rows;
      std::vector<base::BlockId>& own = blocks.emplace_back();
      for (std::int64_t i = 0; i * tensor::kKvBlockTokens < end; ++i) {
        own.push_back({kv.blocks[span.first_block + i]});
        num_blocks = std::max(num_blocks, std::int64_t{own.back().value} + 1);
      }
      sequences.push_back({span.first_row, span.num_rows, span.start_position, own});
      rows = std::max(rows, std::int64_t{span.first_row} + span.num_rows);
    }
    view = {static_cast<std::byte*>(kv.data), num_blocks, {kv.kv_heads, kv.head_dim, DTypeOf(kv.dtype)}};
  }
  std::vector<std::vector<base::BlockId>> blocks;
  std::vector<kernels::SequenceRows> sequences;
  std::int64_t num_blocks = 0;
  std::int64_t rows = 0;  // a bound
  tensor::KvView view;
};

void AppendKv(const kernels::CudaAppendKvArgs& args, device::Stream& stream) {
  const Sequences kv(args.kv);
  const std::int64_t cols = args.kv.kv_heads * args.kv.head_dim;
  MustRun(
      RefKernels().append_kv({View(args.keys, kv.rows, cols, args.keys_stride),
                              View(args.values, kv.rows, cols, args.values_stride), kv.sequences, kv.view},
                             stream));
}

void Attention(const kernels::CudaAttentionArgs& args, device::Stream& stream) {
  const Sequences kv(args.kv);
  const std::int64_t cols = args.heads * args.kv.head_dim;
  kernels::AttentionArgs ref;
  ref.queries = View(args.queries, kv.rows, cols, args.queries_stride);
  ref.sequences = kv.sequences;
  ref.kv = kv.view;
  ref.heads = args.heads;
  ref.window = args.window;
  ref.scale = args.scale;
  ref.out = View(args.out, kv.rows, cols, args.out_stride);
  MustRun(RefKernels().attention(ref, stream));
}

void Gate(const kernels::CudaGateArgs& args, device::Stream& stream) {
  const std::int64_t chosen = args.rows * args.experts_per_row;
  std::vector<std::int32_t> experts(static_cast<std::size_t>(chosen));
  std::vector<float> weights(experts.size());
  MustRun(RefKernels().moe_gate(
      {View(args.logits, args.rows, args.num_experts, args.logits_stride), args.experts_per_row,
       args.normalize, absl::MakeSpan(experts), absl::MakeSpan(weights)},
      stream));
  for (std::int32_t* const to : {args.experts, args.mapped_experts}) {
    if (to != nullptr) {
      std::copy(experts.begin(), experts.end(), to);
    }
  }
  for (float* const to : {args.weights, args.mapped_weights}) {
    if (to != nullptr) {
      std::copy(weights.begin(), weights.end(), to);
    }
  }
}

void Dispatch(const kernels::CudaDispatchArgs& args, device::Stream& /*stream*/) {
  const std::int64_t pairs = args.rows * args.experts_per_row;
  const std::int64_t most = std::min(args.num_experts, pairs);
  std::int32_t num_work = 0;
  std::int32_t next = 0;
  std::fill_n(args.grouped, pairs, -1);
  std::fill_n(args.source, pairs, -1);
  std::fill_n(args.work, most, kernels::CudaExpertWork());
  for (std::int64_t e = 0; e < args.num_experts; ++e) {
    const std::int32_t first = next;
    for (std::int64_t i = 0; i < pairs; ++i) {
      if (args.experts[i] == e && args.slots[e] != 0) {
        args.grouped[next] = static_cast<std::int32_t>(i / args.experts_per_row);
        args.source[i] = next++;
      }
    }
    if (next > first) {
      args.work[num_work++] = {reinterpret_cast<const void*>(args.slots[e]), first, next - first};
    }
  }
  if (args.num_work != nullptr) {
    *args.num_work = num_work;
  }
}

void ExpertFfn(const kernels::CudaExpertFfnArgs& args, device::Stream& stream) {
  const tensor::BlobLayout layout =
      tensor::BlobLayout::Make(DTypeOf(args.dtype), args.hidden, args.intermediate);
  COMOE_CHECK(static_cast<std::int64_t>(layout.gate_up_offset) == args.gate_up_offset &&
                  static_cast<std::int64_t>(layout.down_offset) == args.down_offset,
              "the layout is that of blobs");
  std::vector<kernels::ExpertRows> experts;
  std::int64_t rows = args.x_rows;
  for (const kernels::CudaExpertWork& work : Count(args.work, args.num_work)) {
    if (work.num_rows == 0) {
      continue;
    }
    const absl::Span<const std::int32_t> own(args.grouped + work.first_row,
                                             static_cast<std::size_t>(work.num_rows));
    COMOE_CHECK(work.num_rows <= args.max_rows && work.first_row + work.num_rows <= args.total_rows,
                "bounds of a launch hold");
    rows = std::max<std::int64_t>(rows, *std::max_element(own.begin(), own.end()) + 1);
    experts.push_back({{static_cast<const std::byte*>(work.blob), &layout}, own, work.first_row});
  }
  if (experts.empty()) {
    return;
  }
  MustRun(
      RefKernels().expert_ffn({View(args.x, rows, args.hidden, args.x_stride), experts,
                               View(args.scratch, args.total_rows, layout.gate_up.n / 2, args.scratch_stride),
                               View(args.y, args.total_rows, args.hidden, args.y_stride)},
                              stream));
}

// Rows of `y`, then of mapped memory, then one of zeros for pairs without a source.
void Combine(const kernels::CudaCombineArgs& args, device::Stream& stream) {
  const std::int64_t pairs = args.rows * args.experts_per_row;
  std::vector<std::int32_t> source(args.source, args.source + pairs);
  std::vector<float> gathered(static_cast<std::size_t>((pairs + 1) * args.cols));
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t from = source[static_cast<std::size_t>(i)];
    if (from >= 0) {
      const bool mapped = args.mapped_y != nullptr && from >= args.y_rows;
      std::copy_n(mapped ? args.mapped_y + (from - args.y_rows) * args.mapped_y_stride
                         : args.y + from * args.y_stride,
                  args.cols, gathered.begin() + i * args.cols);
    }
    source[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(from >= 0 ? i : pairs);
  }
  kernels::MoeCombineArgs ref;
  ref.y = View(gathered.data(), pairs + 1, args.cols, args.cols);
  ref.source = source;
  ref.weights = Count(args.weights, pairs);
  if (args.shared != nullptr) {
    ref.shared = View(args.shared, args.rows, args.cols, args.shared_stride);
  }
  if (args.shared_gate != nullptr) {
    ref.shared_gate = View(args.shared_gate, args.rows, 1, args.shared_gate_stride);
  }
  ref.out = View(args.out, args.rows, args.cols, args.out_stride);
  MustRun(RefKernels().moe_combine(ref, stream));
}

void TopK(const kernels::CudaTopKArgs& args, device::Stream& stream) {
  std::vector<float> values(static_cast<std::size_t>(args.rows * args.k));
  kernels::TopLogitsArgs ref;
  ref.logits = View(args.logits, args.rows, args.vocab, args.logits_stride);
  ref.k = args.k;
  ref.ids = Count(args.ids, args.rows * args.k);
  ref.values = absl::MakeSpan(values);
  MustRun(RefTopLogits(ref, stream));
  if (args.values != nullptr) {
    std::copy(values.begin(), values.end(), args.values);
  }
}

constexpr kernels::CudaLaunchTable kTable = {
    .embed = Launch<Embed, kernels::CudaEmbedArgs>,
    .rms_norm = Launch<RmsNorm, kernels::CudaRmsNormArgs>,
    .heads = Launch<Heads, kernels::CudaHeadsArgs>,
    .add = Launch<Add, kernels::CudaAddArgs>,
    .clamp = Launch<Clamp, kernels::CudaClampArgs>,
    .matmul = Launch<MatMul, kernels::CudaMatMulArgs>,
    .append_kv = Launch<AppendKv, kernels::CudaAppendKvArgs>,
    .attention_decode = Launch<Attention, kernels::CudaAttentionArgs>,
    .attention_prefill = Launch<Attention, kernels::CudaAttentionArgs>,
    .gate = Launch<Gate, kernels::CudaGateArgs>,
    .dispatch = Launch<Dispatch, kernels::CudaDispatchArgs>,
    .expert_ffn = Launch<ExpertFfn, kernels::CudaExpertFfnArgs>,
    .combine = Launch<Combine, kernels::CudaCombineArgs>,
    .top_k = Launch<TopK, kernels::CudaTopKArgs>,
    .blas_create = [](void** /*blas*/) { return kInvalidValue; },
    .blas_destroy = [](void* /*blas*/) {},
};

}  // namespace

const device::CudaPlugin& FakeCudaPluginWithKernels() {
  static const device::CudaPlugin plugin = [] {
    device::CudaPlugin made = FakeCudaPlugin();
    made.kernels = &kTable;
    return made;
  }();
  return plugin;
}

}  // namespace comoe::testing
