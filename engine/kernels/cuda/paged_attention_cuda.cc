#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/kernels/cuda/cuda_launcher.h"
#include "engine/kernels/cuda/cuda_ops.h"
#include "engine/tensor/kv_layout.h"

namespace comoe::kernels {
namespace {

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

}  // namespace

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
  return bytes <= device::CudaStream::kMostSent ? launcher.stream().Put(target, staged, bytes)
                                                : launcher.stream().CopyAsync(target, staged, bytes);
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

template absl::Status AttentionCuda<CudaPrecision::kExact>(const AttentionArgs&, device::Stream&);
template absl::Status AttentionCuda<CudaPrecision::kBf16>(const AttentionArgs&, device::Stream&);

}  // namespace comoe::kernels
