// The CPU kernels at the sizes of real models, each call's bytes and operations beside the read bandwidth and
// the multiply-add peak of as many threads.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench.h"
#include "cli/progress.h"
#include "engine/base/bytes.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/kernels/ops.h"
#include "engine/tensor/packed_matrix.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

using tensor::DType;

struct BenchKernelsOptions {
  std::string threads;
  std::string filter;
  std::int64_t repeats = 3;
  bool quiet = false;
  bool json = false;
};

// One kernel at one size. Bytes: of weights, keys and values, or activations where there is nothing else.
struct KernelCase {
  std::string name;
  double bytes = 0;
  double flops = 0;
  std::function<absl::Status(device::Stream&)> call;
};

struct KernelTiming {
  std::string name;
  double bytes = 0;
  double flops = 0;
  MachineRates machine;
  double seconds = 0;  // of a call
};

const kernels::KernelTable& Table() { return kernels::CpuKernels(); }

// A matrix of random values around 0, aligned as the engine's are.
class Floats {
 public:
  Floats(std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), values_(static_cast<std::size_t>(rows * cols) + kAlignment) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(base::RandomUnit(2, i) - 0.5);
    }
  }
  float* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(values_.data());
    return values_.data() + (kAlignment - address / sizeof(float) % kAlignment) % kAlignment;
  }
  tensor::TensorView view() { return tensor::HostF32(data(), rows_, cols_); }
  void Fill(float value) { std::fill(values_.begin(), values_.end(), value); }

 private:
  static constexpr std::size_t kAlignment = 16;  // floats

  std::int64_t rows_;
  std::int64_t cols_;
  std::vector<float> values_;
};

// Weights one after the other in the cold memory, so that a call finds none of its own in a cache; warm:
// always the same ones.
class Rotation {
 public:
  Rotation(const ColdMemory& memory, std::size_t bytes, bool cold)
      : memory_(memory),
        stride_(base::AlignUp(bytes, tensor::kWeightAlignment)),
        copies_(cold ? ColdMemory::kBytes / stride_ : 1) {}
  const std::byte* Next() { return memory_.data() + stride_ * (next_++ % copies_); }
  std::size_t copies() const { return copies_; }

 private:
  const ColdMemory& memory_;
  std::size_t stride_;
  std::size_t copies_;
  std::size_t next_ = 0;
};

KernelCase MatMulCase(const ColdMemory& memory, std::int64_t rows, std::int64_t k, std::int64_t n,
                      DType dtype = DType::kBf16, bool cold = true) {
  struct State {
    Floats x, y;
    Rotation weights;
  };
  const tensor::MatrixLayout layout = {dtype, n, k};
  auto state = std::make_shared<State>(
      State{Floats(rows, k), Floats(rows, n), Rotation(memory, layout.bytes(), cold)});
  return {absl::StrCat("MatMul ", rows, " x [", n, ", ", k, "] ", std::string(tensor::DTypeName(dtype)),
                       cold ? "" : " cached"),
          static_cast<double>(layout.bytes()), 2.0 * static_cast<double>(rows * n * k),
          [state, layout](device::Stream& stream) {
            return kernels::MatMul(
                Table(), {state->x.view(), {state->weights.Next(), layout}, {}, state->y.view()}, stream);
          }};
}

// Each row uses `chosen` of the experts: neighbours from a random start.
KernelCase ExpertFfnCase(const ColdMemory& memory, std::int64_t rows, std::int64_t hidden,
                         std::int64_t intermediate, std::int64_t experts, std::int64_t chosen) {
  struct State {
    tensor::BlobLayout layout;
    Floats x, scratch, y;
    std::vector<std::vector<std::int32_t>> rows_of;          // each expert's
    std::vector<std::vector<kernels::ExpertRows>> rotation;  // of the same work over other weights
    std::size_t next = 0;
  };
  const tensor::BlobLayout layout = tensor::BlobLayout::Make(DType::kBf16, hidden, intermediate);
  auto state = std::make_shared<State>(State{layout,
                                             Floats(rows, hidden),
                                             Floats(rows * chosen, layout.gate_up.n / 2),
                                             Floats(rows * chosen, hidden),
                                             {},
                                             {}});
  state->rows_of.resize(static_cast<std::size_t>(experts));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint64_t start = base::RandomBits(3, static_cast<std::uint64_t>(row));
    for (std::int64_t i = 0; i < chosen; ++i) {
      const std::uint64_t expert =
          (start + static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(experts);
      state->rows_of[expert].push_back(static_cast<std::int32_t>(row));
    }
  }
  const auto used = static_cast<std::size_t>(
      std::count_if(state->rows_of.begin(), state->rows_of.end(), [](const auto& r) { return !r.empty(); }));
  Rotation blobs(memory, layout.bytes, true);
  constexpr std::size_t kMostRotations = 4096;
  state->rotation.resize(std::clamp<std::size_t>(blobs.copies() / used, 1, kMostRotations));
  for (std::vector<kernels::ExpertRows>& work : state->rotation) {
    std::int64_t first = 0;
    for (const std::vector<std::int32_t>& list : state->rows_of) {
      if (!list.empty()) {
        work.push_back({{blobs.Next(), &state->layout}, list, first});
        first += static_cast<std::int64_t>(list.size());
      }
    }
  }
  return {absl::StrCat("ExpertFfn ", rows, " rows, ", chosen, " of ", experts, " experts ", hidden, " x ",
                       intermediate),
          static_cast<double>(used * layout.bytes),
          6.0 * static_cast<double>(rows * chosen * hidden * intermediate), [state](device::Stream& stream) {
            const auto& work = state->rotation[state->next++ % state->rotation.size()];
            return kernels::ExpertFfn(
                Table(), {state->x.view(), work, state->scratch.view(), state->y.view()}, stream);
          }};
}

// The last `rows` positions of a sequence of `length`.
KernelCase AttentionCase(std::int64_t rows, std::int64_t length, std::int64_t heads, std::int64_t kv_heads,
                         std::int64_t head_dim, DType kv_dtype = DType::kF32) {
  struct State {
    tensor::KvLayout layout;
    std::int64_t blocks;
    Floats pool, queries, out;
    std::vector<base::BlockId> ids;
  };
  const tensor::KvLayout layout = {kv_heads, head_dim, kv_dtype};
  const std::int64_t blocks = (length + tensor::kKvBlockTokens - 1) / tensor::kKvBlockTokens;
  auto state = std::make_shared<State>(
      State{layout,
            blocks,
            Floats(blocks, static_cast<std::int64_t>(layout.block_bytes() / sizeof(float))),
            Floats(rows, heads * head_dim),
            Floats(rows, heads * head_dim),
            {}});
  if (kv_dtype == DType::kF16) {
    std::fill_n(reinterpret_cast<std::uint16_t*>(state->pool.data()), blocks * layout.block_elements(),
                tensor::FloatToF16(0.3F));
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    state->ids.push_back({static_cast<std::int32_t>(b)});
  }
  const double seen =
      static_cast<double>(rows) * (static_cast<double>(length) - 0.5 * static_cast<double>(rows - 1));
  return {absl::StrCat("Attention ", rows, " rows at ", length, ", ", heads, " heads, ", kv_heads, " KV, ",
                       head_dim, kv_dtype == DType::kF16 ? ", F16" : ""),
          static_cast<double>(blocks) * static_cast<double>(layout.block_bytes()),
          4.0 * seen * static_cast<double>(heads * head_dim),
          [state, rows, length, heads](device::Stream& stream) {
            const kernels::SequenceRows sequence = {0, rows, length - rows, state->ids};
            kernels::AttentionArgs args;
            args.queries = state->queries.view();
            args.sequences = {&sequence, 1};
            args.kv = {reinterpret_cast<std::byte*>(state->pool.data()), state->blocks, state->layout};
            args.heads = heads;
            args.scale = 0.1F;
            args.out = state->out.view();
            return kernels::Attention(Table(), args, stream);
          }};
}

KernelCase EmbedCase(const ColdMemory& memory, std::int64_t rows, std::int64_t hidden) {
  struct State {
    Floats out;
    std::vector<base::TokenId> ids;
    std::uint64_t draws = 0;
  };
  constexpr std::int64_t kVocabulary = 32'768;
  auto state = std::make_shared<State>(
      State{Floats(rows, hidden), std::vector<base::TokenId>(static_cast<std::size_t>(rows))});
  return {absl::StrCat("Embed ", rows, " of ", hidden), 6.0 * static_cast<double>(rows * hidden), 0.0,
          [state, &memory, hidden](device::Stream& stream) {
            for (base::TokenId& id : state->ids) {
              id = static_cast<base::TokenId>(base::RandomBits(3, state->draws++) % kVocabulary);
            }
            const tensor::PackedMatrixView table = {memory.data(), {DType::kBf16, kVocabulary, hidden}};
            return kernels::Embed(Table(), {state->ids, table, state->out.view()}, stream);
          }};
}

KernelCase RmsNormCase(std::int64_t rows, std::int64_t cols, std::int64_t groups) {
  struct State {
    Floats x, y, weight;
  };
  auto state =
      std::make_shared<State>(State{Floats(rows, cols), Floats(rows, cols), Floats(1, cols / groups)});
  const auto elements = static_cast<double>(rows * cols);
  return {
      absl::StrCat("RmsNorm ", rows, " of ", cols, " in ", groups), 8.0 * elements, 4.0 * elements,
      [state, cols, groups](device::Stream& stream) {
        const absl::Span<const float> weight(state->weight.data(), static_cast<std::size_t>(cols / groups));
        return kernels::RmsNorm(Table(), {state->x.view(), weight, 1e-6F, groups, state->y.view()}, stream);
      }};
}

KernelCase RopeCase(std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
  struct State {
    Floats x, cos, sin;
  };
  auto state = std::make_shared<State>(
      State{Floats(rows, heads * head_dim), Floats(rows, head_dim / 2), Floats(rows, head_dim / 2)});
  state->cos.Fill(0.8F);  // a rotation: turning again and again neither grows nor vanishes
  state->sin.Fill(0.6F);
  const auto elements = static_cast<double>(rows * heads * head_dim);
  return {
      absl::StrCat("Rope ", rows, " of ", heads, " heads of ", head_dim), 8.0 * elements, 3.0 * elements,
      [state, heads](device::Stream& stream) {
        return kernels::Rope(Table(), {state->x.view(), heads, state->cos.view(), state->sin.view()}, stream);
      }};
}

KernelCase MoeGateCase(std::int64_t rows, std::int64_t experts, std::int64_t chosen) {
  struct State {
    Floats logits;
    std::vector<std::int32_t> experts;
    std::vector<float> weights;
  };
  const auto slots = static_cast<std::size_t>(rows * chosen);
  auto state = std::make_shared<State>(
      State{Floats(rows, experts), std::vector<std::int32_t>(slots), std::vector<float>(slots)});
  return {absl::StrCat("MoeGate ", rows, " rows, ", chosen, " of ", experts),
          4.0 * static_cast<double>(rows * experts), 0.0, [state, chosen](device::Stream& stream) {
            return kernels::MoeGate(Table(),
                                    {state->logits.view(), chosen, true, absl::MakeSpan(state->experts),
                                     absl::MakeSpan(state->weights)},
                                    stream);
          }};
}

KernelCase MoeCombineCase(std::int64_t rows, std::int64_t hidden, std::int64_t chosen) {
  struct State {
    Floats y, out;
    std::vector<std::int32_t> source;
    std::vector<float> weights;
  };
  const auto slots = static_cast<std::size_t>(rows * chosen);
  auto state =
      std::make_shared<State>(State{Floats(rows * chosen, hidden), Floats(rows, hidden),
                                    std::vector<std::int32_t>(slots), std::vector<float>(slots, 0.001F)});
  std::iota(state->source.begin(), state->source.end(), 0);
  return {absl::StrCat("MoeCombine ", rows, " rows of ", hidden, ", ", chosen, " experts"),
          4.0 * static_cast<double>(rows * hidden * (chosen + 2)),
          2.0 * static_cast<double>(rows * hidden * chosen), [state](device::Stream& stream) {
            return kernels::MoeCombine(
                Table(), {state->y.view(), state->source, state->weights, {}, {}, state->out.view()}, stream);
          }};
}

// A 30 B model with 3 B active (hidden 2048, 128 experts of 768), and the trained models of this project.
std::vector<KernelCase> AllCases(const ColdMemory& memory) {
  std::vector<KernelCase> cases;
  for (const std::int64_t rows : {1, 4, 8, 16, 64, 512}) {
    cases.push_back(MatMulCase(memory, rows, 2048, 2048));
  }
  cases.push_back(MatMulCase(memory, 1, 2048, 151'936));
  cases.push_back(MatMulCase(memory, 1, 2048, 2048, DType::kBf16, false));
  for (const std::int64_t rows : {1, 512}) {
    cases.push_back(MatMulCase(memory, rows, 2048, 2048, DType::kF16));
    cases.push_back(MatMulCase(memory, rows, 2048, 2048, DType::kF32));
    cases.push_back(MatMulCase(memory, rows, 256, 512, DType::kBf16, false));
    cases.push_back(MatMulCase(memory, rows, 256, 8192, DType::kBf16, false));
  }
  for (const std::int64_t rows : {1, 4, 16, 512}) {
    cases.push_back(ExpertFfnCase(memory, rows, 2048, 768, 128, 8));
    cases.push_back(ExpertFfnCase(memory, rows, 256, 48, 32, 4));
    cases.push_back(ExpertFfnCase(memory, rows, 256, 96, 64, 2));
  }
  cases.push_back(AttentionCase(1, 512, 32, 4, 128));
  cases.push_back(AttentionCase(1, 8192, 32, 4, 128));
  cases.push_back(AttentionCase(1, 8192, 32, 4, 128, DType::kF16));
  cases.push_back(AttentionCase(512, 512, 32, 4, 128));
  cases.push_back(AttentionCase(64, 8192, 32, 4, 128));
  cases.push_back(AttentionCase(1, 1024, 4, 2, 64));
  cases.push_back(AttentionCase(1, 1024, 4, 2, 64, DType::kF16));
  cases.push_back(AttentionCase(512, 512, 4, 2, 64));
  for (const std::int64_t rows : {1, 512}) {
    cases.push_back(RmsNormCase(rows, 2048, 1));
    cases.push_back(RmsNormCase(rows, 4096, 32));
    cases.push_back(RopeCase(rows, 32, 128));
    cases.push_back(MoeGateCase(rows, 128, 8));
    cases.push_back(MoeCombineCase(rows, 2048, 8));
    cases.push_back(EmbedCase(memory, rows, 2048));
  }
  return cases;
}

// Seconds of a call: the median of `repeats` runs of about a twentieth of a second each, after a warm-up.
absl::StatusOr<double> TimeCalls(const KernelCase& kernel, std::int64_t repeats, device::Stream& stream) {
  constexpr double kRunSeconds = 0.05;
  absl::Status status;
  const auto run = [&](std::int64_t calls) {
    return Seconds([&] {
             for (std::int64_t i = 0; i < calls && status.ok(); ++i) {
               status = kernel.call(stream);
             }
           }) /
           static_cast<double>(calls);
  };
  run(1);
  const auto calls = static_cast<std::int64_t>(std::clamp(kRunSeconds / run(3), 1.0, 1e6));
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < repeats; ++i) {
    seconds.push_back(run(calls));
  }
  COMOE_RETURN_IF_ERROR(status);
  return Median(seconds);
}

void PrintText(const std::vector<MachineRates>& machines, const std::vector<KernelTiming>& timings) {
  std::printf("kernels %s\n", Table().name);
  for (const MachineRates& machine : machines) {
    std::printf("%s\n", Describe(machine).c_str());
  }
  std::printf("\n%-52s %7s %11s %9s %9s %8s %9s %8s %8s\n", "kernel", "threads", "us", "MB", "GB/s",
              "of read", "MFLOP", "GFLOP/s", "of FMA");
  for (const KernelTiming& t : timings) {
    const double read = t.bytes / t.seconds;
    const double compute = t.flops / t.seconds;
    std::printf("%-52s %7d %11.2f %9.3f %9.2f %7.0f%% %9.2f %8.1f %7.0f%%\n", t.name.c_str(),
                t.machine.threads, t.seconds * 1e6, t.bytes * 1e-6, read * 1e-9,
                100.0 * read / t.machine.read_bytes_per_second, t.flops * 1e-6, compute * 1e-9,
                100.0 * compute / t.machine.flops_per_second);
  }
}

void PrintJson(const std::vector<KernelTiming>& timings) {
  nlohmann::json out = {{"kernels", Table().name}, {"results", nlohmann::json::array()}};
  for (const KernelTiming& t : timings) {
    out["results"].push_back({{"kernel", t.name},
                              {"threads", t.machine.threads},
                              {"seconds", t.seconds},
                              {"bytes", t.bytes},
                              {"flops", t.flops},
                              {"machine_read_bytes_per_second", t.machine.read_bytes_per_second},
                              {"machine_flops_per_second", t.machine.flops_per_second}});
  }
  std::printf("%s\n", out.dump(2).c_str());
}

absl::Status BenchKernels(const BenchKernelsOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> threads,
                         ParseList("--threads", options.threads, 1, 1024));
  if (options.repeats < 1 || options.repeats > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--repeats is ", options.repeats, ": it lies in [1, 1000]"));
  }
  const std::unique_ptr<device::Device> host = device::MakeCpuDevice(1);
  COMOE_ASSIGN_OR_RETURN(const ColdMemory memory, ColdMemory::Create(*host));
  std::vector<KernelCase> cases = AllCases(memory);
  std::erase_if(cases, [&](const KernelCase& c) { return !absl::StrContains(c.name, options.filter); });
  if (cases.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no kernel's name contains '", options.filter, "'"));
  }
  std::vector<MachineRates> machines;
  std::vector<KernelTiming> timings;
  Progress progress("measuring kernels", options.quiet);
  for (const std::int64_t count : threads) {
    COMOE_ASSIGN_OR_RETURN(const MachineRates machine, MeasureMachine(memory, static_cast<int>(count)));
    machines.push_back(machine);
    const std::unique_ptr<device::Device> device = device::MakeCpuDevice(machine.threads);
    COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<device::Stream> stream,
                           device->CreateStream("bench", device::StreamKind::kCompute));
    for (const KernelCase& kernel : cases) {
      COMOE_ASSIGN_OR_RETURN(const double seconds, TimeCalls(kernel, options.repeats, *stream));
      timings.push_back({kernel.name, kernel.bytes, kernel.flops, machine, seconds});
      progress.Update(timings.size(), cases.size() * threads.size(), "kernels");
    }
  }
  options.json ? PrintJson(timings) : PrintText(machines, timings);
  return absl::OkStatus();
}

}  // namespace

void AddBenchKernelsCommand(CLI::App& bench, absl::Status& result) {
  auto options = std::make_shared<BenchKernelsOptions>();
  options->threads = DefaultThreads();
  CLI::App* command = bench.add_subcommand("kernels", "the CPU kernels at the sizes of real models");
  command->add_option("--threads", options->threads, "thread counts to measure with")->capture_default_str();
  command->add_option("--filter", options->filter, "only kernels whose name contains this");
  command->add_option("--repeats", options->repeats, "runs after a warm-up; their median is reported")
      ->capture_default_str();
  command->add_flag("--quiet", options->quiet, "no progress on stderr");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &result] { result = BenchKernels(*options); });
}

}  // namespace comoe::cli
