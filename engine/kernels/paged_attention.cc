#include "engine/kernels/paged_attention.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status PrepareSequences(const KernelTable& table, const PrepareSequencesArgs& args,
                              device::Stream& stream) {
  constexpr absl::string_view kOp = "PrepareSequences";
  if (!HasPrepareSequences(table)) {
    return absl::UnimplementedError(absl::StrCat(kOp, ": the kernels ", table.name, " do not have it"));
  }
  for (const SequenceRows& seq : args.sequences) {
    const auto blocks = static_cast<std::int64_t>(seq.blocks.size());
    if (seq.num_rows != 1 || seq.start_position < 0 ||
        seq.start_position >= blocks * tensor::kKvBlockTokens) {
      return BadArgument(kOp, absl::StrCat(seq.num_rows, " rows at position ", seq.start_position, ", and ",
                                           blocks, " blocks"));
    }
  }
  return args.table < 0 ? BadArgument(kOp, absl::StrCat("table ", args.table))
                        : table.prepare_sequences(args, stream);
}

absl::Status AppendKv(const KernelTable& table, const AppendKvArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "AppendKv";
  COMOE_RETURN_IF_ERROR(CheckKv(kOp, args.kv));
  const std::int64_t cols = args.kv.layout.kv_heads * args.kv.layout.head_dim;
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "keys", args.keys, args.keys.rows, cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "values", args.values, args.keys.rows, cols));
  for (const SequenceRows& seq : args.sequences) {
    COMOE_RETURN_IF_ERROR(CheckSequence(kOp, seq, args.keys.rows, args.kv, seq.start_position));
  }
  return table.append_kv(args, stream);
}

absl::Status Attention(const KernelTable& table, const AttentionArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "Attention";
  COMOE_RETURN_IF_ERROR(CheckKv(kOp, args.kv));
  if (args.heads < 1 || args.heads % args.kv.layout.kv_heads != 0) {
    return BadArgument(kOp, absl::StrCat(args.heads, " query heads do not share ", args.kv.layout.kv_heads,
                                         " KV heads evenly"));
  }
  if (args.window < 0) {
    return BadArgument(kOp, absl::StrCat("a window of ", args.window, " positions"));
  }
  const std::int64_t cols = args.heads * args.kv.layout.head_dim;
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "queries", args.queries, args.queries.rows, cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "out", args.out, args.queries.rows, cols));
  for (const SequenceRows& seq : args.sequences) {
    const std::int64_t first =
        args.window == 0 ? 0 : std::max<std::int64_t>(0, seq.start_position - args.window + 1);
    COMOE_RETURN_IF_ERROR(CheckSequence(kOp, seq, args.queries.rows, args.kv, first));
  }
  return table.attention(args, stream);
}

}  // namespace comoe::kernels
