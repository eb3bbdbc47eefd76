#include "tests/support/fake_cuda_kernels.h"

#include <memory>
#include <vector>

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

template <auto kEntry, class Args>
absl::Status RefEntry(const Args& args, device::Stream& stream) {
  return (kernels::RefKernels().*kEntry)(args, stream);
}

template <auto kRun, class Args>
absl::Status Queued(const Args& args, device::Stream& stream) {
  auto* const cuda = dynamic_cast<device::CudaStream*>(&stream);
  if (cuda == nullptr) {
    return absl::FailedPreconditionError("not a stream of the fake CUDA device");
  }
  absl::Status status;
  FakeLaunch(cuda->handle(), [&args, &status] {
    base::ThreadPool pool(1, "fake-cuda");
    device::CpuStream host(pool);
    status = kRun(args, host);
  });
  if (const int error = FakeCudaPlugin().device->synchronize_stream(cuda->handle()); error != 0) {
    return cuda->Launched(error, "a fake kernel");
  }
  return status;
}

}  // namespace

const kernels::KernelTable& FakeCudaKernels() {
  using kernels::KernelTable;
  static const KernelTable table = {
      .name = "fake",
      .embed = Queued<RefEntry<&KernelTable::embed, kernels::EmbedArgs>, kernels::EmbedArgs>,
      .rms_norm = Queued<RefEntry<&KernelTable::rms_norm, kernels::RmsNormArgs>, kernels::RmsNormArgs>,
      .matmul = Queued<RefEntry<&KernelTable::matmul, kernels::MatMulArgs>, kernels::MatMulArgs>,
      .rope = Queued<RefEntry<&KernelTable::rope, kernels::RopeArgs>, kernels::RopeArgs>,
      .append_kv = Queued<RefEntry<&KernelTable::append_kv, kernels::AppendKvArgs>, kernels::AppendKvArgs>,
      .attention = Queued<RefEntry<&KernelTable::attention, kernels::AttentionArgs>, kernels::AttentionArgs>,
      .moe_gate = Queued<RefEntry<&KernelTable::moe_gate, kernels::MoeGateArgs>, kernels::MoeGateArgs>,
      .expert_ffn =
          Queued<RefEntry<&KernelTable::expert_ffn, kernels::ExpertFfnArgs>, kernels::ExpertFfnArgs>,
      .moe_combine =
          Queued<RefEntry<&KernelTable::moe_combine, kernels::MoeCombineArgs>, kernels::MoeCombineArgs>,
      .add = Queued<RefEntry<&KernelTable::add, kernels::AddArgs>, kernels::AddArgs>,
      .clamp = Queued<RefEntry<&KernelTable::clamp, kernels::ClampArgs>, kernels::ClampArgs>,
      .moe_resident = Queued<RefMoeResident, kernels::MoeResidentArgs>,
  };
  return table;
}

}  // namespace comoe::testing
