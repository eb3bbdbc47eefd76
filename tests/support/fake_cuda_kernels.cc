#include "tests/support/fake_cuda_kernels.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/cuda/cuda_stream.h"
#include "engine/kernels/ops.h"
#include "tests/support/fake_cuda.h"

namespace comoe::testing {
namespace {

// By the reference loops, in the order in which the device works.
absl::Status RefMoeResident(const kernels::MoeResidentArgs& args, device::Stream& stream) {
  const kernels::KernelTable& ref = kernels::RefKernels();
  const auto chosen = static_cast<std::size_t>(args.y.rows);
  COMOE_RETURN_IF_ERROR(
      ref.moe_gate({args.logits, args.experts_per_row, args.normalize, args.experts, args.weights}, stream));
  std::vector<std::vector<std::int32_t>> rows(args.blobs.size());
  std::vector<std::int32_t> source(chosen);
  for (std::size_t i = 0; i < chosen; ++i) {
    rows[static_cast<std::size_t>(args.experts[i])].push_back(
        static_cast<std::int32_t>(static_cast<std::int64_t>(i) / args.experts_per_row));
  }
  std::vector<kernels::ExpertRows> work;
  std::vector<std::int64_t> next(rows.size());
  std::int64_t first = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    next[e] = first;
    if (!rows[e].empty()) {
      work.push_back({{reinterpret_cast<const std::byte*>(args.blobs[e]), args.layout}, rows[e], first});
      first += static_cast<std::int64_t>(rows[e].size());
    }
  }
  for (std::size_t i = 0; i < chosen; ++i) {
    source[i] = static_cast<std::int32_t>(next[static_cast<std::size_t>(args.experts[i])]++);
  }
  COMOE_RETURN_IF_ERROR(ref.expert_ffn({args.x, work, args.scratch, args.y}, stream));
  return ref.moe_combine({args.y, source, args.weights, args.shared, args.shared_gate, args.out}, stream);
}

// What the fake device's kernels do beside the reference loops: additions first, and host memory.
absl::Status RefRmsNorm(const kernels::RmsNormArgs& args, device::Stream& stream) {
  const kernels::KernelTable& ref = kernels::RefKernels();
  if (args.add.data != nullptr) {
    COMOE_RETURN_IF_ERROR(ref.add({args.add, args.x}, stream));
  }
  COMOE_RETURN_IF_ERROR(ref.rms_norm(args, stream));
  for (std::int64_t t = 0; args.host_y.data != nullptr && t < args.y.rows; ++t) {
    std::copy_n(args.y.f32(t), args.y.cols, args.host_y.f32(t));
  }
  return absl::OkStatus();
}

absl::Status RefMoeCombine(const kernels::MoeCombineArgs& args, device::Stream& stream) {
  if (args.host_y.data == nullptr) {
    return kernels::RefKernels().moe_combine(args, stream);
  }
  const std::int64_t rows = args.y.rows + args.host_y.rows;
  std::vector<float> all(static_cast<std::size_t>(rows * args.y.cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(i < args.y.rows ? args.y.f32(i) : args.host_y.f32(i - args.y.rows), args.y.cols,
                all.begin() + i * args.y.cols);
  }
  kernels::MoeCombineArgs joined = args;
  joined.y = {reinterpret_cast<std::byte*>(all.data()),
              tensor::DType::kF32,
              rows,
              args.y.cols,
              args.y.cols,
              args.y.device};
  joined.host_y = {};
  return kernels::RefKernels().moe_combine(joined, stream);
}

absl::Status RefHeads(const kernels::HeadsArgs& args, device::Stream& stream) {
  return kernels::Heads(kernels::RefKernels(), args, stream);
}

// The sequences in the "device's" tables, of each stream; changed and read by that stream's work alone.
struct Table {
  std::vector<kernels::SequenceRows> sequences;
  std::vector<std::vector<base::BlockId>> blocks;
};
Table& TableOf(void* stream, std::int32_t number) {
  static std::mutex& mutex = *new std::mutex();
  static auto& tables = *new std::map<std::pair<void*, std::int32_t>, Table>();
  const std::lock_guard<std::mutex> lock(mutex);
  return tables[{stream, number}];
}

absl::Status PrepareSequences(const kernels::PrepareSequencesArgs& args, device::Stream& stream) {
  auto* const cuda = dynamic_cast<device::CudaStream*>(&stream);
  Table table;
  table.sequences.assign(args.sequences.begin(), args.sequences.end());
  for (kernels::SequenceRows& sequence : table.sequences) {
    table.blocks.emplace_back(sequence.blocks.begin(), sequence.blocks.end());
    sequence.blocks = table.blocks.back();
  }
  void* const handle = cuda->handle();
  FakeLaunch(handle, [handle, number = args.table, table = std::move(table)] {
    Table& there = TableOf(handle, number);
    there = table;
    for (std::size_t i = 0; i < there.blocks.size(); ++i) {
      there.sequences[i].blocks = there.blocks[i];
    }
  });
  return absl::OkStatus();
}

template <auto kEntry, class Args>
absl::Status RefEntry(const Args& args, device::Stream& stream) {
  return (kernels::RefKernels().*kEntry)(args, stream);
}

// Arguments with all that they refer to in the host's lists.
template <class Args>
struct Owned {
  explicit Owned(const Args& from) : args(from) {}
  Args Use() const { return args; }
  Args args;
};
template <>
struct Owned<kernels::ExpertFfnArgs> {
  explicit Owned(const kernels::ExpertFfnArgs& from)
      : args(from), experts(from.experts.begin(), from.experts.end()) {
    for (const kernels::ExpertRows& expert : experts) {
      rows.emplace_back(expert.rows.begin(), expert.rows.end());
    }
  }
  kernels::ExpertFfnArgs Use() const {
    for (std::size_t i = 0; i < experts.size(); ++i) {
      experts[i].rows = rows[i];
    }
    kernels::ExpertFfnArgs use = args;
    use.experts = experts;
    return use;
  }
  kernels::ExpertFfnArgs args;
  mutable std::vector<kernels::ExpertRows> experts;
  std::vector<std::vector<std::int32_t>> rows;
};

// Sequences that are prepared are read where they were put.
template <class Args>
Args FromTables(Args args, void* stream) {
  if constexpr (requires {
                  args.sequences;
                  args.table;
                }) {
    if (args.table >= 0) {
      args.sequences = TableOf(stream, args.table).sequences;
    }
  }
  return args;
}

template <auto kRun, class Args>
absl::Status Queued(const Args& args, device::Stream& stream) {
  auto* const cuda = dynamic_cast<device::CudaStream*>(&stream);
  if (cuda == nullptr) {
    return absl::FailedPreconditionError("not a stream of the fake CUDA device");
  }
  void* const handle = cuda->handle();
  const auto run = [handle](const Args& given) {
    base::ThreadPool pool(1, "fake-cuda");
    device::CpuStream host(pool);
    return kRun(FromTables(given, handle), host);
  };
  if (FakeCapturing(handle)) {
    FakeLaunch(handle, [run, owned = Owned<Args>(args)] {
      const absl::Status status = run(owned.Use());
      COMOE_CHECK(status.ok(), "what was captured works");
    });
    return absl::OkStatus();
  }
  absl::Status status;
  FakeLaunch(handle, [&] { status = run(args); });
  if (const int error = FakeJoin(handle); error != 0) {
    return cuda->Launched(error, "a fake kernel");
  }
  return status;
}

}  // namespace

absl::Status RefTopLogits(const kernels::TopLogitsArgs& args, device::Stream& /*stream*/) {
  const auto vocab = static_cast<std::size_t>(args.logits.cols);
  std::vector<std::int32_t> ids(vocab);
  for (std::int64_t row = 0; row < args.logits.rows; ++row) {
    const absl::Span<const float> logits(args.logits.f32(row), vocab);
    const auto rank = [&logits](std::int32_t id) {
      const float x = logits[static_cast<std::size_t>(id)];
      return std::pair<bool, float>(!std::isnan(x), std::isnan(x) ? 0.0F : -x);
    };
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](std::int32_t a, std::int32_t b) { return rank(a) < rank(b); });
    for (std::int64_t i = 0; i < args.k; ++i) {
      const std::int32_t id = ids[static_cast<std::size_t>(i)];
      args.ids[static_cast<std::size_t>(row * args.k + i)] = id;
      args.values[static_cast<std::size_t>(row * args.k + i)] = logits[static_cast<std::size_t>(id)];
    }
  }
  return absl::OkStatus();
}

const kernels::KernelTable& FakeCudaKernels() {
  using kernels::KernelTable;
  static const KernelTable table = {
      .name = "fake",
      .embed = Queued<RefEntry<&KernelTable::embed, kernels::EmbedArgs>, kernels::EmbedArgs>,
      .rms_norm = Queued<RefRmsNorm, kernels::RmsNormArgs>,
      .matmul = Queued<RefEntry<&KernelTable::matmul, kernels::MatMulArgs>, kernels::MatMulArgs>,
      .rope = Queued<RefEntry<&KernelTable::rope, kernels::RopeArgs>, kernels::RopeArgs>,
      .append_kv = Queued<RefEntry<&KernelTable::append_kv, kernels::AppendKvArgs>, kernels::AppendKvArgs>,
      .attention = Queued<RefEntry<&KernelTable::attention, kernels::AttentionArgs>, kernels::AttentionArgs>,
      .moe_gate = Queued<RefEntry<&KernelTable::moe_gate, kernels::MoeGateArgs>, kernels::MoeGateArgs>,
      .expert_ffn =
          Queued<RefEntry<&KernelTable::expert_ffn, kernels::ExpertFfnArgs>, kernels::ExpertFfnArgs>,
      .moe_combine = Queued<RefMoeCombine, kernels::MoeCombineArgs>,
      .add = Queued<RefEntry<&KernelTable::add, kernels::AddArgs>, kernels::AddArgs>,
      .clamp = Queued<RefEntry<&KernelTable::clamp, kernels::ClampArgs>, kernels::ClampArgs>,
      .heads = Queued<RefHeads, kernels::HeadsArgs>,
      .prepare_sequences = PrepareSequences,
      .moe_resident = Queued<RefMoeResident, kernels::MoeResidentArgs>,
      .top_logits = Queued<RefTopLogits, kernels::TopLogitsArgs>,
      .rms_norm_adds = true,
      .reaches_host = true,
  };
  return table;
}

}  // namespace comoe::testing
