#include "engine/kernels/emulated/emulated_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/device/emulated/emulated_stream.h"
#include "engine/kernels/ops.h"

namespace comoe::kernels {
namespace {

using device::KernelWork;

constexpr double kF32Bytes = 4.0;

double Elements(const tensor::TensorView& view) {
  return view.data == nullptr ? 0.0 : static_cast<double>(view.rows * view.cols);
}
double Size(std::size_t value) { return static_cast<double>(value); }

// Activations are read or written once, weights are read once; where an op reads them more often, they come
// from a cache.
KernelWork WorkOf(const EmbedArgs& args) {
  const double row = Size(args.table.layout.panel_bytes()) / static_cast<double>(tensor::kPanelOutputs);
  return {Size(args.ids.size()) * row + Elements(args.out) * kF32Bytes, 0.0, 0};
}

KernelWork WorkOf(const RmsNormArgs& args) {
  return {2.0 * Elements(args.x) * kF32Bytes + Size(args.weight.size()) * kF32Bytes, 4.0 * Elements(args.x),
          0};
}

KernelWork WorkOf(const MatMulArgs& args) {
  return {Size(args.w.layout.bytes()) + (Elements(args.x) + Elements(args.y)) * kF32Bytes,
          2.0 * Elements(args.x) * static_cast<double>(args.w.layout.n), 0};
}

KernelWork WorkOf(const RopeArgs& args) {
  return {(2.0 * Elements(args.x) + Elements(args.cos) + Elements(args.sin)) * kF32Bytes,
          3.0 * Elements(args.x), 0};
}

KernelWork WorkOf(const AppendKvArgs& args) {
  double rows = 0.0;
  for (const SequenceRows& seq : args.sequences) {
    rows += static_cast<double>(seq.num_rows);
  }
  const double stored = Size(tensor::DTypeBytes(args.kv.layout.dtype));
  return {2.0 * rows * static_cast<double>(args.keys.cols) * (kF32Bytes + stored), 0.0, 0};
}

KernelWork WorkOf(const AttentionArgs& args) {
  const double position_bytes =
      Size(args.kv.layout.block_bytes()) / static_cast<double>(tensor::kKvBlockTokens);
  const auto query_cols = static_cast<double>(args.queries.cols);
  KernelWork work;
  for (const SequenceRows& seq : args.sequences) {
    // Row i counts start + i + 1 positions, or those in its window.
    double pairs = 0.0;
    for (std::int64_t i = 0; i < seq.num_rows; ++i) {
      const std::int64_t seen = seq.start_position + i + 1;
      pairs += static_cast<double>(args.window == 0 ? seen : std::min(seen, args.window));
    }
    const std::int64_t end = seq.start_position + seq.num_rows;
    const std::int64_t read = args.window == 0 ? end : std::min(end, args.window + seq.num_rows - 1);
    work.bytes += static_cast<double>(read) * position_bytes +
                  2.0 * static_cast<double>(seq.num_rows) * query_cols * kF32Bytes;
    work.flops += 4.0 * pairs * query_cols;
  }
  return work;
}

KernelWork WorkOf(const MoeGateArgs& args) {
  return {Elements(args.logits) * kF32Bytes + 2.0 * Size(args.experts.size()) * kF32Bytes,
          5.0 * Elements(args.logits), 0};
}

KernelWork WorkOf(const ExpertFfnArgs& args) {
  KernelWork work;
  work.experts = static_cast<std::int64_t>(args.experts.size());
  for (const ExpertRows& expert : args.experts) {
    const tensor::BlobLayout& layout = *expert.expert.layout;
    const double rows = Size(expert.rows.size());
    const auto hidden = static_cast<double>(layout.hidden);
    const auto intermediate = static_cast<double>(layout.intermediate);
    work.bytes +=
        Size(layout.gate_up.bytes() + layout.down.bytes()) + 2.0 * rows * (hidden + intermediate) * kF32Bytes;
    work.flops += 6.0 * rows * hidden * intermediate;
  }
  return work;
}

KernelWork WorkOf(const MoeCombineArgs& args) {
  const double terms = Size(args.source.size()) * static_cast<double>(args.out.cols);
  return {(terms + Elements(args.shared) + 2.0 * Elements(args.out)) * kF32Bytes,
          2.0 * (terms + Elements(args.shared)), 0};
}

KernelWork WorkOf(const AddArgs& args) { return {3.0 * Elements(args.x) * kF32Bytes, Elements(args.x), 0}; }

KernelWork WorkOf(const ClampArgs& args) {
  return {2.0 * Elements(args.x) * kF32Bytes, 2.0 * Elements(args.x), 0};
}

// The entry of CpuKernels() that `kEntry` names, charged to the stream.
template <auto kEntry, class Args>
absl::Status Charged(const Args& args, device::Stream& stream) {
  const auto run = CpuKernels().*kEntry;
  auto* emulated = dynamic_cast<device::EmulatedStream*>(&stream);
  if (emulated == nullptr) {
    return run(args, stream);
  }
  emulated->BeginKernel();
  const absl::Status status = run(args, stream);
  emulated->EndKernel(WorkOf(args));
  return status;
}

KernelTable MakeTable() {
  static const std::string& name = *new std::string(absl::StrCat("emulated/", CpuKernels().name));
  return {
      .name = name.c_str(),
      .embed = Charged<&KernelTable::embed, EmbedArgs>,
      .rms_norm = Charged<&KernelTable::rms_norm, RmsNormArgs>,
      .matmul = Charged<&KernelTable::matmul, MatMulArgs>,
      .rope = Charged<&KernelTable::rope, RopeArgs>,
      .append_kv = Charged<&KernelTable::append_kv, AppendKvArgs>,
      .attention = Charged<&KernelTable::attention, AttentionArgs>,
      .moe_gate = Charged<&KernelTable::moe_gate, MoeGateArgs>,
      .expert_ffn = Charged<&KernelTable::expert_ffn, ExpertFfnArgs>,
      .moe_combine = Charged<&KernelTable::moe_combine, MoeCombineArgs>,
      .add = Charged<&KernelTable::add, AddArgs>,
      .clamp = Charged<&KernelTable::clamp, ClampArgs>,
  };
}

}  // namespace

const KernelTable& EmulatedKernels() {
  static const KernelTable table = MakeTable();
  return table;
}

}  // namespace comoe::kernels
