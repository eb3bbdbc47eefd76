// The CPU kernels at real sizes, beside what the machine can do: GB/s of weights or state read, GFLOP/s, and
// each as a share of the read bandwidth and of the multiply-add peak measured here with the same number of
// threads.
//
//   kernel_bench --benchmark_filter=MatMul
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/base/bytes.h"
#include "engine/base/rng.h"
#include "engine/base/thread_pool.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/kernels/cpu/machine_peaks.h"
#include "engine/kernels/ops.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {
namespace {

struct Machine {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
  double read_gb_s = 0;
  double gflop_s = 0;
};

// Larger than any cache share of one core: its reads come from memory.
constexpr std::size_t kColdBytes = std::size_t{1} << 30;

std::byte* ColdBytes() {
  static std::byte* const data = [] {
    auto* bytes = static_cast<std::byte*>(std::aligned_alloc(std::size_t{2} << 20, kColdBytes));
    // Small BF16 values, so that nothing overflows or becomes subnormal.
    for (std::size_t i = 0; i < kColdBytes; i += 8) {
      const std::uint64_t bits = (base::RandomBits(1, i) & 0x807f807f807f807fULL) | 0x3d003d003d003d00ULL;
      std::memcpy(bytes + i, &bits, 8);
    }
    return bytes;
  }();
  return data;
}

double Seconds(absl::FunctionRef<void()> fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Machine& GetMachine(int threads) {
  static std::vector<Machine> machines(static_cast<std::size_t>(base::UsableCores()) + 1);
  Machine& machine = machines.at(static_cast<std::size_t>(threads));
  if (machine.device != nullptr) {
    return machine;
  }
  machine.device = device::MakeCpuDevice(threads);
  machine.stream = machine.device->CreateStream("bench").value();
  base::ThreadPool& pool = device::AsCpuStream(*machine.stream)->pool();
  double best_read = 1e9;
  double best_fma = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    best_read = std::min(
        best_read, Seconds([&] {
          pool.ParallelFor(threads * 8, [&](std::int64_t task, int /*worker*/) {
            const std::size_t part = kColdBytes / static_cast<std::size_t>(threads * 8);
            benchmark::DoNotOptimize(ReadAll(ColdBytes() + static_cast<std::size_t>(task) * part, part));
          });
        }));
    best_fma = std::min(best_fma, Seconds([&] {
                          pool.ParallelFor(threads, [&](std::int64_t /*task*/, int /*worker*/) {
                            benchmark::DoNotOptimize(MultiplyAdds(kPeakRounds));
                          });
                        }));
  }
  machine.read_gb_s = static_cast<double>(kColdBytes) / best_read * 1e-9;
  machine.gflop_s = MultiplyAddFlops(kPeakRounds) * threads / best_fma * 1e-9;
  std::cerr << threads << " threads: reads " << machine.read_gb_s << " GB/s, " << machine.gflop_s
            << " GFLOP/s (" << CpuKernels().name << ")\n";
  return machine;
}

// Reports one call's bytes and FLOPs as rates, and as shares of the machine's.
void Report(benchmark::State& state, const Machine& machine, double bytes, double flops) {
  const auto calls = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(bytes * calls * 1e-9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(flops * calls * 1e-9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes * calls * 1e-9 / machine.read_gb_s, Counter::kIsRate);
  state.counters["of_fma"] = Counter(flops * calls * 1e-9 / machine.gflop_s, Counter::kIsRate);
}

// A matrix, aligned as the engine's buffers are.
class Floats {
 public:
  Floats(std::int64_t rows, std::int64_t cols)
      : rows_(rows),
        cols_(cols),
        device_(device::MakeCpuDevice(1)),
        buffer_(device_
                    ->Allocate(device::MemoryKind::kHost,
                               static_cast<std::size_t>(rows * cols) * sizeof(float), 64)
                    .value()) {
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      view().f32()[i] = static_cast<float>(base::RandomUnit(2, static_cast<std::uint64_t>(i)) - 0.5);
    }
  }
  tensor::TensorView view() {
    return tensor::HostF32(reinterpret_cast<float*>(buffer_.data()), rows_, cols_);
  }
  void Fill(float value) { std::fill_n(view().f32(), rows_ * cols_, value); }

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  std::unique_ptr<device::Device> device_;
  device::Buffer buffer_;
};

// Weights one after the other in the cold bytes; `copies` of them, so that a call finds none of its own in a
// cache (copies == 1: all of them).
class Rotation {
 public:
  Rotation(std::size_t bytes, bool cold)
      : stride_(base::AlignUp(bytes, tensor::kWeightAlignment)), copies_(cold ? kColdBytes / stride_ : 1) {}
  const std::byte* Next() { return ColdBytes() + stride_ * (next_++ % copies_); }

 private:
  std::size_t stride_;
  std::size_t copies_;
  std::size_t next_ = 0;
};

// M, K, N, cold, dtype, threads
void BM_MatMul(benchmark::State& state) {
  const std::int64_t m = state.range(0);
  const tensor::MatrixLayout layout = {static_cast<tensor::DType>(state.range(4)), state.range(2),
                                       state.range(1)};
  Machine& machine = GetMachine(static_cast<int>(state.range(5)));
  Floats x(m, layout.k);
  Floats y(m, layout.n);
  Rotation weights(layout.bytes(), state.range(3) != 0);
  for (auto _ : state) {
    const absl::Status status =
        MatMul(CpuKernels(), {x.view(), {weights.Next(), layout}, {}, y.view()}, *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  Report(state, machine, static_cast<double>(layout.bytes()),
         2.0 * static_cast<double>(m * layout.n * layout.k));
}

// rows, D, F, E, K, threads: each row uses K of E experts.
void BM_ExpertFfn(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const tensor::BlobLayout layout =
      tensor::BlobLayout::Make(tensor::DType::kBf16, state.range(1), state.range(2));
  const std::int64_t experts = state.range(3);
  const std::int64_t k = state.range(4);
  Machine& machine = GetMachine(static_cast<int>(state.range(5)));
  std::vector<std::vector<std::int32_t>> lists(static_cast<std::size_t>(experts));
  for (std::int64_t i = 0; i < rows * k; ++i) {
    // K neighbours from a random start: distinct for a row.
    const auto start = base::RandomBits(3, static_cast<std::uint64_t>(i / k));
    const auto e = (start + static_cast<std::uint64_t>(i % k)) % static_cast<std::uint64_t>(experts);
    lists[e].push_back(static_cast<std::int32_t>(i / k));
  }
  Floats x(rows, layout.hidden);
  Floats scratch(rows * k, layout.gate_up.n / 2);
  Floats y(rows * k, layout.hidden);
  Rotation blobs(layout.bytes, true);
  double used = 0;
  for (auto _ : state) {
    state.PauseTiming();
    std::vector<ExpertRows> work;
    std::int64_t first = 0;
    for (const auto& list : lists) {
      if (!list.empty()) {
        work.push_back({{blobs.Next(), &layout}, list, first});
        first += static_cast<std::int64_t>(list.size());
      }
    }
    used = static_cast<double>(work.size());
    state.ResumeTiming();
    const absl::Status status =
        ExpertFfn(CpuKernels(), {x.view(), work, scratch.view(), y.view()}, *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  Report(state, machine, used * static_cast<double>(layout.bytes),
         6.0 * static_cast<double>(rows * k * layout.hidden * layout.intermediate));
}

// rows of one sequence, its length, H, G, P, threads
void BM_Attention(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t length = state.range(1);
  const std::int64_t heads = state.range(2);
  const tensor::KvLayout layout = {state.range(3), state.range(4)};
  Machine& machine = GetMachine(static_cast<int>(state.range(5)));
  const std::int64_t blocks = (length + tensor::kKvBlockTokens - 1) / tensor::kKvBlockTokens;
  Floats pool(blocks, layout.block_floats());
  std::vector<base::BlockId> ids(static_cast<std::size_t>(blocks));
  for (std::size_t b = 0; b < ids.size(); ++b) {
    ids[b] = base::BlockId{static_cast<std::int32_t>(b)};
  }
  Floats queries(rows, heads * layout.head_dim);
  Floats out(rows, heads * layout.head_dim);
  const SequenceRows seq = {0, rows, length - rows, ids};
  for (auto _ : state) {
    const absl::Status status = Attention(
        CpuKernels(),
        {queries.view(), {&seq, 1}, {pool.view().f32(), blocks, layout}, heads, 0, 0.1F, out.view()},
        *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  const double seen =
      static_cast<double>(rows) * (static_cast<double>(length) - 0.5 * static_cast<double>(rows - 1));
  Report(state, machine, static_cast<double>(blocks) * static_cast<double>(layout.block_bytes()),
         4.0 * seen * static_cast<double>(heads * layout.head_dim));
}

// rows, D, dtype, threads
void BM_Embed(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  constexpr std::int64_t kVocabulary = 32'768;
  const tensor::MatrixLayout layout = {static_cast<tensor::DType>(state.range(2)), kVocabulary,
                                       state.range(1)};
  Machine& machine = GetMachine(static_cast<int>(state.range(3)));
  std::vector<base::TokenId> ids(static_cast<std::size_t>(rows));
  Floats out(rows, state.range(1));
  std::uint64_t draws = 0;
  for (auto _ : state) {
    for (base::TokenId& id : ids) {
      id = static_cast<base::TokenId>(base::RandomBits(3, draws++) % kVocabulary);
    }
    const absl::Status status =
        Embed(CpuKernels(), {ids, {ColdBytes(), layout}, out.view()}, *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  Report(state, machine, 8.0 * static_cast<double>(rows * state.range(1)), 0.0);
}

// rows, D, groups, threads
void BM_RmsNorm(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  const std::int64_t groups = state.range(2);
  Machine& machine = GetMachine(static_cast<int>(state.range(3)));
  Floats x(rows, cols);
  Floats y(rows, cols);
  Floats weight(1, cols / groups);
  for (auto _ : state) {
    const absl::Status status = RmsNorm(
        CpuKernels(),
        {x.view(), {weight.view().f32(), static_cast<std::size_t>(cols / groups)}, 1e-6F, groups, y.view()},
        *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  Report(state, machine, 8.0 * static_cast<double>(rows * cols), 4.0 * static_cast<double>(rows * cols));
}

// rows, heads, P, threads
void BM_Rope(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t heads = state.range(1);
  const std::int64_t dim = state.range(2);
  Machine& machine = GetMachine(static_cast<int>(state.range(3)));
  Floats x(rows, heads * dim);
  Floats cos(rows, dim / 2);
  Floats sin(rows, dim / 2);
  cos.Fill(0.8F);  // a rotation, so that turning again and again neither grows nor vanishes
  sin.Fill(0.6F);
  for (auto _ : state) {
    const absl::Status status =
        Rope(CpuKernels(), {x.view(), heads, cos.view(), sin.view()}, *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  Report(state, machine, 8.0 * static_cast<double>(rows * heads * dim),
         3.0 * static_cast<double>(rows * heads * dim));
}

// rows, E, K, threads
void BM_MoeGate(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t k = state.range(2);
  Machine& machine = GetMachine(static_cast<int>(state.range(3)));
  Floats logits(rows, state.range(1));
  std::vector<std::int32_t> experts(static_cast<std::size_t>(rows * k));
  std::vector<float> weights(experts.size());
  for (auto _ : state) {
    const absl::Status status =
        MoeGate(CpuKernels(), {logits.view(), k, true, absl::MakeSpan(experts), absl::MakeSpan(weights)},
                *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  Report(state, machine, 4.0 * static_cast<double>(rows * state.range(1)), 0.0);
}

// rows, D, K, threads
void BM_MoeCombine(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  const std::int64_t k = state.range(2);
  Machine& machine = GetMachine(static_cast<int>(state.range(3)));
  Floats y(rows * k, cols);
  Floats out(rows, cols);
  std::vector<std::int32_t> source(static_cast<std::size_t>(rows * k));
  std::iota(source.begin(), source.end(), 0);
  const std::vector<float> weights(source.size(), 0.001F);
  for (auto _ : state) {
    const absl::Status status =
        MoeCombine(CpuKernels(), {y.view(), source, weights, {}, {}, out.view()}, *machine.stream);
    benchmark::DoNotOptimize(status.ok());
  }
  Report(state, machine, 4.0 * static_cast<double>(rows * cols * (k + 2)),
         2.0 * static_cast<double>(rows * cols * k));
}

// Waking the pool's workers for nothing: what parallel.h weighs work against.
void BM_PoolWakeUp(benchmark::State& state) {
  Machine& machine = GetMachine(static_cast<int>(state.range(0)));
  base::ThreadPool& pool = device::AsCpuStream(*machine.stream)->pool();
  for (auto _ : state) {
    pool.ParallelFor(state.range(0),
                     [](std::int64_t task, int /*worker*/) { benchmark::DoNotOptimize(task); });
  }
}

// Runs each case with one thread, and with all cores if there are more.
using Case = std::vector<std::int64_t>;
void Register(const std::string& name, void (*fn)(benchmark::State&), const std::vector<std::string>& names,
              const std::vector<Case>& cases) {
  std::vector<std::int64_t> threads = {1};
  if (base::UsableCores() > 1) {
    threads.push_back(base::UsableCores());
  }
  for (const Case& sizes : cases) {
    for (const std::int64_t t : threads) {
      Case args = sizes;
      args.push_back(t);
      std::vector<std::string> arg_names = names;
      arg_names.push_back("t");
      benchmark::RegisterBenchmark(name.c_str(), fn)->Args(args)->ArgNames(arg_names)->UseRealTime();
    }
  }
}

void RegisterAll() {
  constexpr std::int64_t kBf16 = static_cast<std::int64_t>(tensor::DType::kBf16);
  constexpr std::int64_t kF16 = static_cast<std::int64_t>(tensor::DType::kF16);
  constexpr std::int64_t kF32 = static_cast<std::int64_t>(tensor::DType::kF32);
  Register("MatMul", BM_MatMul, {"M", "K", "N", "cold", "dtype"},
           {{1, 2048, 2048, 1, kBf16},
            {1, 2048, 151936, 1, kBf16},
            {1, 2048, 2048, 0, kBf16},
            {1, 2048, 2048, 1, kF16},
            {1, 2048, 2048, 1, kF32},
            {1, 256, 256, 0, kBf16},
            {1, 256, 8192, 0, kBf16},
            {4, 2048, 2048, 1, kBf16},
            {8, 2048, 2048, 1, kBf16},
            {16, 2048, 2048, 1, kBf16},
            {64, 2048, 2048, 1, kBf16},
            {512, 2048, 2048, 1, kBf16},
            {512, 2048, 2048, 1, kF16},
            {512, 2048, 2048, 1, kF32},
            {512, 256, 256, 0, kBf16}});
  Register("ExpertFfn", BM_ExpertFfn, {"T", "D", "F", "E", "K"},
           {{1, 2048, 768, 128, 8},
            {4, 2048, 768, 128, 8},
            {512, 2048, 768, 128, 8},
            {1, 256, 48, 32, 4},
            {4, 256, 48, 32, 4},
            {16, 256, 48, 32, 4},
            {512, 256, 48, 32, 4}});
  Register("Attention", BM_Attention, {"T", "length", "H", "G", "P"},
           {{1, 512, 32, 4, 128},
            {1, 8192, 32, 4, 128},
            {512, 512, 32, 4, 128},
            {512, 8192, 32, 4, 128},
            {1, 512, 16, 16, 128},
            {1, 512, 4, 2, 64},
            {512, 512, 4, 2, 64}});
  Register("RmsNorm", BM_RmsNorm, {"T", "D", "groups"},
           {{1, 2048, 1}, {512, 2048, 1}, {1, 4096, 32}, {1, 256, 1}, {512, 256, 1}});
  Register("Rope", BM_Rope, {"T", "H", "P"}, {{1, 32, 128}, {512, 32, 128}});
  Register("MoeGate", BM_MoeGate, {"T", "E", "K"}, {{1, 128, 8}, {512, 128, 8}, {1, 32, 4}, {512, 32, 4}});
  Register("MoeCombine", BM_MoeCombine, {"T", "D", "K"},
           {{1, 2048, 8}, {512, 2048, 8}, {1, 256, 4}, {512, 256, 4}});
  Register("Embed", BM_Embed, {"T", "D", "dtype"}, {{1, 2048, kBf16}, {1, 2048, kF16}, {512, 2048, kF16}});
  benchmark::RegisterBenchmark("PoolWakeUp", BM_PoolWakeUp)->Arg(base::UsableCores())->UseRealTime();
}

}  // namespace
}  // namespace comoe::kernels

int main(int argc, char** argv) {
  comoe::kernels::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
