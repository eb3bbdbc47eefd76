#include "engine/kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda/cuda_stream.h"
#include "engine/kernels/ops.h"

namespace comoe::kernels {
namespace {

using device::CudaStream;

CudaDType DTypeOf(tensor::DType dtype) { return static_cast<CudaDType>(dtype); }

static_assert(static_cast<int>(tensor::DType::kF32) == static_cast<int>(CudaDType::kF32));
static_assert(static_cast<int>(tensor::DType::kBf16) == static_cast<int>(CudaDType::kBf16));
static_assert(static_cast<int>(tensor::DType::kF16) == static_cast<int>(CudaDType::kF16));

float* Data(const tensor::TensorView& view) { return reinterpret_cast<float*>(view.data); }

// Sequences that lie in a table of the stream's.
struct Prepared {
  const CudaSpan* spans = nullptr;
  const std::int32_t* blocks = nullptr;
  std::int64_t num_spans = 0;
  std::int64_t max_context = 0;  // a bound
};

// What kernels keep with a stream.
struct KernelState {
  void* blas = nullptr;  // a cuBLAS handle, or none where the library is missing
  bool blas_asked_for = false;
  void (*destroy_blas)(void* blas) = nullptr;
  std::vector<Prepared> prepared;
};

void DestroyState(void* data) {
  auto* const state = static_cast<KernelState*>(data);
  if (state->blas != nullptr) {
    state->destroy_blas(state->blas);
  }
  delete state;
}

// A stream that kernels may be launched on, and with what.
class Launcher {
 public:
  static absl::StatusOr<Launcher> Make(device::Stream& stream) {
    auto* const cuda = dynamic_cast<CudaStream*>(&stream);
    if (cuda == nullptr) {
      return absl::FailedPreconditionError("a CUDA kernel was given a stream that is none of a CUDA device");
    }
    const auto* const table = static_cast<const CudaLaunchTable*>(cuda->kernels());
    if (table == nullptr) {
      return absl::UnavailableError("cuda: the plugin was built without kernels");
    }
    if (table->abi != kCudaLaunchAbi || table->bytes != sizeof(CudaLaunchTable)) {
      return absl::UnavailableError("cuda: the plugin's kernels belong to another version of this program");
    }
    return Launcher(*cuda, *table);
  }

  CudaStream& stream() const { return *stream_; }

  template <typename Args>
  absl::Status Launch(int (*CudaLaunchTable::*launch)(const Args&, void*), const Args& args,
                      absl::string_view name) const {
    return stream_->Launched((table_->*launch)(args, stream_->handle()), name);
  }

  template <typename T>
  absl::StatusOr<const T*> Stage(absl::Span<const T> values) const {
    COMOE_ASSIGN_OR_RETURN(const std::byte* const staged,
                           stream_->StageCopy(values.data(), values.size() * sizeof(T)));
    return reinterpret_cast<const T*>(staged);
  }
  // Two arrays for one launch, written by `fill(first, second)`, and where kernels find them.
  template <typename A, typename B, typename Fill>
  absl::StatusOr<std::pair<const A*, const B*>> Stage(std::size_t num_a, std::size_t num_b, Fill fill) const {
    constexpr std::size_t kAlignment = 16;
    const std::size_t second = base::AlignUp(num_a * sizeof(A), kAlignment);
    const std::size_t bytes = second + num_b * sizeof(B);
    COMOE_ASSIGN_OR_RETURN(std::byte* const staged, stream_->Stage(bytes));
    fill(absl::Span<A>(reinterpret_cast<A*>(staged), num_a),
         absl::Span<B>(reinterpret_cast<B*>(staged + second), num_b));
    COMOE_ASSIGN_OR_RETURN(const std::byte* const sent, stream_->Send(staged, bytes));
    return std::pair<const A*, const B*>(reinterpret_cast<const A*>(sent),
                                         reinterpret_cast<const B*>(sent + second));
  }
  KernelState& state() const {
    device::CudaKernelState& state = stream_->kernel_state();
    if (state.data == nullptr) {
      auto* const made = new KernelState();
      made->destroy_blas = table_->blas_destroy;
      state = {made, DestroyState};
    }
    return *static_cast<KernelState*>(state.data);
  }
  // Made by the first product of many rows.
  void* Blas() const {
    KernelState& kept = state();
    if (!std::exchange(kept.blas_asked_for, true) && table_->blas_create(&kept.blas) != 0) {
      kept.blas = nullptr;
    }
    return kept.blas;
  }

 private:
  Launcher(CudaStream& stream, const CudaLaunchTable& table) : stream_(&stream), table_(&table) {}

  CudaStream* stream_;
  const CudaLaunchTable* table_;
};

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

bool AnyRows(const SequenceRows& /*sequence*/) { return true; }
bool OneRow(const SequenceRows& sequence) { return sequence.num_rows == 1; }
bool SeveralRows(const SequenceRows& sequence) { return sequence.num_rows > 1; }

std::size_t BlocksOf(const SequenceRows& sequence) {
  return static_cast<std::size_t>((sequence.start_position + sequence.num_rows + tensor::kKvBlockTokens - 1) /
                                  tensor::kKvBlockTokens);
}

// Those that are `wanted`, with their block tables, one after another.
void FillKv(absl::Span<const SequenceRows> sequences, bool (*wanted)(const SequenceRows&),
            absl::Span<CudaSpan> spans, absl::Span<std::int32_t> blocks) {
  std::size_t at = 0;
  std::size_t next = 0;
  for (const SequenceRows& sequence : sequences) {
    if (sequence.num_rows == 0 || !wanted(sequence)) {
      continue;
    }
    spans[next++] = {static_cast<std::int32_t>(sequence.first_row),
                     static_cast<std::int32_t>(sequence.num_rows),
                     static_cast<std::int32_t>(sequence.start_position), static_cast<std::int32_t>(at)};
    for (std::size_t i = 0; i < BlocksOf(sequence); ++i) {
      blocks[at++] = sequence.blocks[i].value;
    }
  }
}

CudaKv KvOf(const tensor::KvView& view) {
  CudaKv kv;
  kv.data = view.data;
  kv.dtype = DTypeOf(view.layout.dtype);
  kv.kv_heads = view.layout.kv_heads;
  kv.head_dim = view.layout.head_dim;
  return kv;
}

CudaKv KvOf(const tensor::KvView& view, const Prepared& prepared) {
  CudaKv kv = KvOf(view);
  kv.spans = prepared.spans;
  kv.blocks = prepared.blocks;
  kv.num_spans = prepared.num_spans;
  kv.max_span_rows = 1;
  return kv;
}

absl::Status PrepareSequencesCuda(const PrepareSequencesArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  std::vector<Prepared>& tables = launcher.state().prepared;
  const auto number = static_cast<std::size_t>(args.table);
  if (number >= tables.size()) {
    tables.resize(number + 1);
  }
  Prepared& prepared = tables[number];
  prepared = {};
  std::size_t num_blocks = 0;
  for (const SequenceRows& sequence : args.sequences) {
    num_blocks += BlocksOf(sequence);
    prepared.max_context = std::max(prepared.max_context, sequence.start_position + 1);
  }
  if (args.sequences.empty()) {
    return absl::OkStatus();
  }
  prepared.max_context = ContextBound(prepared.max_context);
  prepared.num_spans = static_cast<std::int64_t>(args.sequences.size());
  const std::size_t span_bytes = args.sequences.size() * sizeof(CudaSpan);
  const std::size_t bytes = span_bytes + num_blocks * sizeof(std::int32_t);
  COMOE_ASSIGN_OR_RETURN(std::byte* const staged, launcher.stream().Stage(bytes));
  FillKv(args.sequences, AnyRows,
         absl::Span<CudaSpan>(reinterpret_cast<CudaSpan*>(staged), args.sequences.size()),
         absl::Span<std::int32_t>(reinterpret_cast<std::int32_t*>(staged + span_bytes), num_blocks));
  constexpr std::size_t kRoundedUp = 16;  // what Put may write beyond
  COMOE_ASSIGN_OR_RETURN(std::byte* const target, launcher.stream().Table(number, bytes + kRoundedUp));
  prepared.spans = reinterpret_cast<const CudaSpan*>(target);
  prepared.blocks = reinterpret_cast<const std::int32_t*>(target + span_bytes);
  return bytes <= CudaStream::kMostSent ? launcher.stream().Put(target, staged, bytes)
                                        : launcher.stream().CopyAsync(target, staged, bytes);
}

// nullptr: they are prepared nowhere.
const Prepared* PreparedAt(const Launcher& launcher, std::int32_t table, std::size_t num_sequences) {
  const std::vector<Prepared>& tables = launcher.state().prepared;
  if (table < 0 || static_cast<std::size_t>(table) >= tables.size()) {
    return nullptr;
  }
  const Prepared& prepared = tables[static_cast<std::size_t>(table)];
  return prepared.num_spans == static_cast<std::int64_t>(num_sequences) ? &prepared : nullptr;
}

// The sequences that are `wanted`, as kernels read them.
absl::StatusOr<CudaKv> StageKv(const Launcher& launcher, absl::Span<const SequenceRows> sequences,
                               const tensor::KvView& view, bool (*wanted)(const SequenceRows&)) {
  CudaKv kv = KvOf(view);
  std::size_t num_blocks = 0;
  for (const SequenceRows& sequence : sequences) {
    if (sequence.num_rows > 0 && wanted(sequence)) {
      ++kv.num_spans;
      kv.max_span_rows = std::max(kv.max_span_rows, sequence.num_rows);
      num_blocks += BlocksOf(sequence);
    }
  }
  if (kv.num_spans == 0) {
    return kv;
  }
  const auto fill = [&](absl::Span<CudaSpan> spans, absl::Span<std::int32_t> blocks) {
    FillKv(sequences, wanted, spans, blocks);
  };
  COMOE_ASSIGN_OR_RETURN(
      std::tie(kv.spans, kv.blocks),
      (launcher.Stage<CudaSpan, std::int32_t>(static_cast<std::size_t>(kv.num_spans), num_blocks, fill)));
  return kv;
}

absl::Status AppendKvCuda(const AppendKvArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaAppendKvArgs launch;
  launch.keys = Data(args.keys);
  launch.keys_stride = args.keys.row_stride;
  launch.values = Data(args.values);
  launch.values_stride = args.values.row_stride;
  if (const Prepared* prepared = PreparedAt(launcher, args.table, args.sequences.size())) {
    launch.kv = KvOf(args.kv, *prepared);
  } else {
    COMOE_ASSIGN_OR_RETURN(launch.kv, StageKv(launcher, args.sequences, args.kv, AnyRows));
  }
  return launch.kv.num_spans == 0 ? absl::OkStatus()
                                  : launcher.Launch(&CudaLaunchTable::append_kv, launch, "append_kv");
}

// Sequences with one row go to the kernel that cuts their context up, others to the one that takes tiles of
// rows.
template <CudaPrecision kPrecision>
absl::Status AttentionCuda(const AttentionArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaAttentionArgs launch;
  launch.queries = Data(args.queries);
  launch.queries_stride = args.queries.row_stride;
  launch.heads = args.heads;
  launch.window = args.window;
  launch.scale = args.scale;
  launch.out = Data(args.out);
  launch.out_stride = args.out.row_stride;
  launch.precision = kPrecision;
  if (const Prepared* prepared = PreparedAt(launcher, args.table, args.sequences.size())) {
    launch.max_context = prepared->max_context;
    launch.kv = KvOf(args.kv, *prepared);
  } else {
    for (const SequenceRows& sequence : args.sequences) {
      launch.max_context = std::max(launch.max_context, sequence.start_position + sequence.num_rows);
    }
    COMOE_ASSIGN_OR_RETURN(launch.kv, StageKv(launcher, args.sequences, args.kv, SeveralRows));
    if (launch.kv.num_spans > 0) {
      COMOE_RETURN_IF_ERROR(
          launcher.Launch(&CudaLaunchTable::attention_prefill, launch, "attention_prefill"));
    }
    COMOE_ASSIGN_OR_RETURN(launch.kv, StageKv(launcher, args.sequences, args.kv, OneRow));
  }
  if (launch.kv.num_spans == 0) {
    return absl::OkStatus();
  }
  const std::int64_t length =
      args.window > 0 ? std::min(launch.max_context, args.window) : launch.max_context;
  launch.workspace_bytes =
      CudaAttentionWorkspaceBytes(launch.kv.num_spans, launch.heads, launch.kv.head_dim, length);
  COMOE_ASSIGN_OR_RETURN(launch.workspace, launcher.stream().Scratch(launch.workspace_bytes));
  return launcher.Launch(&CudaLaunchTable::attention_decode, launch, "attention_decode");
}

absl::Status MoeGateCuda(const MoeGateArgs& args, device::Stream& stream) {
  if (args.logits.rows == 0) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaGateArgs launch;
  launch.logits = Data(args.logits);
  launch.logits_stride = args.logits.row_stride;
  launch.rows = args.logits.rows;
  launch.num_experts = args.logits.cols;
  launch.experts_per_row = args.experts_per_row;
  launch.normalize = args.normalize;
  launch.mapped_experts = args.experts.data();
  launch.mapped_weights = args.weights.data();
  return launcher.Launch(&CudaLaunchTable::gate, launch, "gate");
}

void SetLayout(const tensor::BlobLayout& layout, CudaExpertFfnArgs& launch) {
  launch.dtype = DTypeOf(layout.down.dtype);
  launch.hidden = layout.hidden;
  launch.intermediate = layout.intermediate;
  launch.gate_up_offset = static_cast<std::int64_t>(layout.gate_up_offset);
  launch.down_offset = static_cast<std::int64_t>(layout.down_offset);
}

template <CudaPrecision kPrecision>
absl::Status ExpertFfnCuda(const ExpertFfnArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaExpertFfnArgs launch;
  // Only the rows from the first expert's to the last's are looked at.
  std::int64_t first = args.experts.front().first_out;
  std::int64_t end = 0;
  for (const ExpertRows& expert : args.experts) {
    const auto rows = static_cast<std::int64_t>(expert.rows.size());
    launch.max_rows = std::max(launch.max_rows, rows);
    first = std::min(first, expert.first_out);
    end = std::max(end, expert.first_out + rows);
  }
  launch.total_rows = end - first;
  if (launch.max_rows == 0) {
    return absl::OkStatus();
  }
  const auto fill = [&](absl::Span<CudaExpertWork> work, absl::Span<std::int32_t> grouped) {
    std::fill(grouped.begin(), grouped.end(), -1);
    for (std::size_t i = 0; i < work.size(); ++i) {
      const ExpertRows& expert = args.experts[i];
      work[i] = {expert.expert.data, static_cast<std::int32_t>(expert.first_out - first),
                 static_cast<std::int32_t>(expert.rows.size())};
      std::copy(expert.rows.begin(), expert.rows.end(), grouped.begin() + (expert.first_out - first));
    }
  };
  COMOE_ASSIGN_OR_RETURN(std::tie(launch.work, launch.grouped),
                         (launcher.Stage<CudaExpertWork, std::int32_t>(
                             args.experts.size(), static_cast<std::size_t>(launch.total_rows), fill)));
  const tensor::BlobLayout& layout = *args.experts.front().expert.layout;
  SetLayout(layout, launch);
  launch.x = Data(args.x);
  launch.x_stride = args.x.row_stride;
  launch.x_rows = args.x.rows;
  launch.num_work = static_cast<std::int64_t>(args.experts.size());
  launch.scratch = Data(args.scratch) + first * args.scratch.row_stride;
  launch.scratch_stride = args.scratch.row_stride;
  launch.y = Data(args.y) + first * args.y.row_stride;
  launch.y_stride = args.y.row_stride;
  launch.precision = kPrecision;
  if (launch.max_rows > kCudaFewRows) {
    launch.workspace_bytes =
        CudaExpertFfnWorkspaceBytes(launch.total_rows, layout.hidden, layout.intermediate, kPrecision);
    COMOE_ASSIGN_OR_RETURN(launch.workspace, launcher.stream().Scratch(launch.workspace_bytes));
  }
  return launcher.Launch(&CudaLaunchTable::expert_ffn, launch, "expert_ffn");
}

absl::Status MoeCombineCuda(const MoeCombineArgs& args, device::Stream& stream) {
  if (args.out.rows == 0) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaCombineArgs launch;
  launch.y = Data(args.y);
  launch.y_stride = args.y.row_stride;
  launch.y_rows = args.y.rows;
  launch.mapped_y = Data(args.host_y);
  launch.mapped_y_stride = args.host_y.row_stride;
  const auto fill = [&args](absl::Span<std::int32_t> source, absl::Span<float> weights) {
    std::copy(args.source.begin(), args.source.end(), source.begin());
    std::copy(args.weights.begin(), args.weights.end(), weights.begin());
  };
  COMOE_ASSIGN_OR_RETURN(
      std::tie(launch.source, launch.weights),
      (launcher.Stage<std::int32_t, float>(args.source.size(), args.weights.size(), fill)));
  launch.experts_per_row = static_cast<std::int64_t>(args.source.size()) / args.out.rows;
  launch.shared = Data(args.shared);
  launch.shared_stride = args.shared.row_stride;
  launch.shared_gate = Data(args.shared_gate);
  launch.shared_gate_stride = args.shared_gate.row_stride;
  launch.out = Data(args.out);
  launch.out_stride = args.out.row_stride;
  launch.rows = args.out.rows;
  launch.cols = args.out.cols;
  return launcher.Launch(&CudaLaunchTable::combine, launch, "combine");
}

// A region of memory cut up in order.
class Cutter {
 public:
  explicit Cutter(std::byte* data) : data_(data) {}
  template <typename T>
  T* Cut(std::int64_t count) {
    constexpr std::size_t kAlignment = 256;
    auto* const begin = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
    used_ += base::AlignUp(static_cast<std::size_t>(count) * sizeof(T), kAlignment);
    return begin;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* data_;
  std::size_t used_ = 0;
};

// What the launches of a resident layer hand to each other.
struct RoutedRows {
  std::int32_t* experts = nullptr;  // [T, K]
  float* weights = nullptr;         // [T, K]
  CudaExpertWork* work = nullptr;
  std::int32_t* grouped = nullptr;  // [T * K]
  std::int32_t* source = nullptr;   // [T, K]
  std::byte* workspace = nullptr;
};

template <CudaPrecision kPrecision>
absl::Status MoeResidentCuda(const MoeResidentArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  const std::int64_t rows = args.x.rows;
  const std::int64_t chosen = args.y.rows;
  const std::int64_t num_experts = args.logits.cols;
  const std::int64_t num_work = std::min(num_experts, chosen);
  const std::size_t workspace_bytes =
      rows > kCudaFewRows
          ? CudaExpertFfnWorkspaceBytes(chosen, args.layout->hidden, args.layout->intermediate, kPrecision)
          : 0;
  const auto cut = [&](std::byte* data, std::size_t* bytes) {
    Cutter cutter(data);
    RoutedRows routed;
    routed.experts = cutter.Cut<std::int32_t>(chosen);
    routed.weights = cutter.Cut<float>(chosen);
    routed.work = cutter.Cut<CudaExpertWork>(num_work);
    routed.grouped = cutter.Cut<std::int32_t>(chosen);
    routed.source = cutter.Cut<std::int32_t>(chosen);
    routed.workspace = cutter.Cut<std::byte>(static_cast<std::int64_t>(workspace_bytes));
    *bytes = cutter.used();
    return routed;
  };
  std::size_t bytes = 0;
  cut(nullptr, &bytes);
  COMOE_ASSIGN_OR_RETURN(std::byte* const scratch, launcher.stream().Scratch(bytes));
  const RoutedRows routed = cut(scratch, &bytes);

  CudaGateArgs gate;
  gate.logits = Data(args.logits);
  gate.logits_stride = args.logits.row_stride;
  gate.rows = rows;
  gate.num_experts = num_experts;
  gate.experts_per_row = args.experts_per_row;
  gate.normalize = args.normalize;
  gate.experts = routed.experts;
  gate.weights = routed.weights;
  gate.mapped_experts = args.experts.data();
  gate.mapped_weights = args.weights.data();
  COMOE_RETURN_IF_ERROR(launcher.Launch(&CudaLaunchTable::gate, gate, "gate"));

  CudaDispatchArgs dispatch;
  dispatch.experts = routed.experts;
  dispatch.rows = rows;
  dispatch.experts_per_row = args.experts_per_row;
  dispatch.num_experts = num_experts;
  dispatch.slots = args.blobs.data();
  dispatch.work = routed.work;
  dispatch.grouped = routed.grouped;
  dispatch.source = routed.source;
  COMOE_RETURN_IF_ERROR(launcher.Launch(&CudaLaunchTable::dispatch, dispatch, "dispatch"));

  CudaExpertFfnArgs ffn;
  SetLayout(*args.layout, ffn);
  ffn.x = Data(args.x);
  ffn.x_stride = args.x.row_stride;
  ffn.x_rows = args.x.rows;
  ffn.grouped = routed.grouped;
  ffn.work = routed.work;
  ffn.num_work = num_work;
  ffn.max_rows = rows;
  ffn.total_rows = chosen;
  ffn.scratch = Data(args.scratch);
  ffn.scratch_stride = args.scratch.row_stride;
  ffn.y = Data(args.y);
  ffn.y_stride = args.y.row_stride;
  ffn.precision = kPrecision;
  ffn.workspace = workspace_bytes > 0 ? routed.workspace : nullptr;
  ffn.workspace_bytes = workspace_bytes;
  COMOE_RETURN_IF_ERROR(launcher.Launch(&CudaLaunchTable::expert_ffn, ffn, "expert_ffn"));

  CudaCombineArgs combine;
  combine.y = Data(args.y);
  combine.y_stride = args.y.row_stride;
  combine.source = routed.source;
  combine.weights = routed.weights;
  combine.experts_per_row = args.experts_per_row;
  combine.shared = Data(args.shared);
  combine.shared_stride = args.shared.row_stride;
  combine.shared_gate = Data(args.shared_gate);
  combine.shared_gate_stride = args.shared_gate.row_stride;
  combine.out = Data(args.out);
  combine.out_stride = args.out.row_stride;
  combine.rows = rows;
  combine.cols = args.out.cols;
  return launcher.Launch(&CudaLaunchTable::combine, combine, "combine");
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
