// Times the CUDA kernels at sizes of a Qwen3-30B-A3B layer that fill the chip, against the copy bandwidth and
// cuBLAS's rate measured in the same run.
//   cuda_kernels_bench [FILE] [FILTER]     JSON lines to FILE; only lines whose name contains FILTER
#include <dlfcn.h>

#include <functional>
#include <numeric>

#include "tests/engine/kernels/cuda/gpu_check.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kHidden = 2048;       // D
constexpr std::int64_t kIntermediate = 768;  // F
constexpr std::int64_t kHeads = 32;          // H
constexpr std::int64_t kKvHeads = 4;         // G
constexpr std::int64_t kDim = 128;           // P
constexpr std::int64_t kExperts = 64;        // 604 MB of them
constexpr std::int64_t kChosen = 8;          // K

class Bench {
 public:
  Bench(std::FILE* json, const char* filter) : json_(json), filter_(filter) {
    MustRun(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    MustRun(cudaEventCreate(&begin_), "event");
    MustRun(cudaEventCreate(&end_), "event");
  }
  cudaStream_t stream() const { return stream_; }
  bool Wanted(const std::string& name) const { return name.find(filter_) != std::string::npos; }

  // Median seconds of a call; call i may use the i-th of several buffers.
  double Seconds(const std::function<int(int)>& call) {
    int next = 0;
    const auto time = [&](int calls) {
      MustRun(cudaEventRecord(begin_, stream_), "record");
      for (int i = 0; i < calls; ++i) {
        MustRun(call(next++), "launch");
      }
      MustRun(cudaEventRecord(end_, stream_), "record");
      MustRun(cudaEventSynchronize(end_), "synchronize");
      float ms = 0;
      MustRun(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
      return static_cast<double>(ms) / 1000 / calls;
    };
    time(2);
    const double once = time(1);
    const int calls = static_cast<int>(std::min(200.0, std::max(1.0, 1.5e-3 / once)));
    std::vector<double> times;
    for (int i = 0; i < 11; ++i) {
      times.push_back(time(calls));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  // One line: `bytes` against the copy bandwidth, `flops` against cuBLAS's rate.
  double Line(const std::string& name, double bytes, double flops, const std::function<int(int)>& call) {
    if (!Wanted(name)) {
      return 0;
    }
    const double seconds = Seconds(call);
    const double bandwidth = bytes / seconds;
    const double rate = flops / seconds;
    std::printf("%-46s %9.1f us", name.c_str(), seconds * 1e6);
    if (bytes > 0) {
      std::printf("  %7.0f GB/s %5.1f %%", bandwidth / 1e9,
                  copy_bandwidth > 0 ? 100 * bandwidth / copy_bandwidth : 0);
    }
    if (flops > 0) {
      std::printf("  %6.1f TFLOP/s %5.1f %%", rate / 1e12, blas_rate > 0 ? 100 * rate / blas_rate : 0);
    }
    std::printf("\n");
    std::fflush(stdout);
    if (json_ != nullptr) {
      std::fprintf(json_,
                   "{\"name\": \"%s\", \"us\": %.2f, \"bytes\": %.0f, \"flops\": %.0f, \"copy_share\": %.4f, "
                   "\"blas_share\": %.4f}\n",
                   name.c_str(), seconds * 1e6, bytes, flops,
                   copy_bandwidth > 0 ? bandwidth / copy_bandwidth : 0, blas_rate > 0 ? rate / blas_rate : 0);
      std::fflush(json_);
    }
    return seconds;
  }

  double copy_bandwidth = 0;
  double blas_rate = 0;

 private:
  std::FILE* json_;
  std::string filter_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Random content made of a 4 M element sample, repeated.
template <class T>
DeviceArray<T> RandomArray(std::size_t size, std::uint64_t seed, float scale) {
  Random random(seed);
  const std::size_t sample = std::min<std::size_t>(size, std::size_t{1} << 22);
  std::vector<T> values(sample);
  for (T& v : values) {
    const float x = random.Uniform() * scale;
    if constexpr (std::is_same_v<T, float>) {
      v = x;
    } else {
      v = seed % 2 == 0 ? tensor::FloatToBf16(x) : tensor::FloatToF16(x);  // even seeds: BF16
    }
  }
  DeviceArray<T> array(size);
  MustRun(cudaMemcpy(array.get(), values.data(), sample * sizeof(T), cudaMemcpyHostToDevice), "upload");
  for (std::size_t at = sample; at < size; at += sample) {
    MustRun(cudaMemcpy(array.get() + at, array.get(), std::min(sample, size - at) * sizeof(T),
                       cudaMemcpyDeviceToDevice),
            "copy");
  }
  MustRun(cudaDeviceSynchronize(), "copy");
  return array;
}

void BenchCopy(Bench& bench) {
  const std::size_t bytes = std::size_t{2} << 30;
  const DeviceArray<float> from = RandomArray<float>(bytes / 4, 1, 1);
  const DeviceArray<float> to(bytes / 4);
  const double seconds = bench.Seconds([&](int) {
    return cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, bench.stream());
  });
  bench.copy_bandwidth = 2.0 * static_cast<double>(bytes) / seconds;
  std::printf("copy: %.0f GB/s (read + written)\n", bench.copy_bandwidth / 1e9);
}

void BenchRows(Bench& bench) {
  const std::int64_t rows = 32768;
  const auto size = static_cast<std::size_t>(rows * kHidden);
  const double bytes = static_cast<double>(size) * 4;
  const DeviceArray<float> x = RandomArray<float>(size, 3, 1);
  const DeviceArray<float> r = RandomArray<float>(size, 5, 1);
  const DeviceArray<float> y(size);
  const DeviceArray<float> w = RandomArray<float>(kHidden, 7, 1);
  CudaRmsNormArgs norm;
  norm.x = x.get();
  norm.weight = w.get();
  norm.y = y.get();
  norm.x_stride = norm.y_stride = norm.add_stride = norm.sum_stride = kHidden;
  norm.rows = rows;
  norm.width = kHidden;
  norm.epsilon = 1e-6F;
  bench.Line("rms_norm 32768x2048", 2 * bytes, 0,
             [&](int) { return CudaLaunches().rms_norm(norm, bench.stream()); });
  norm.add = r.get();
  norm.sum = x.get();
  bench.Line("rms_norm+add 32768x2048", 4 * bytes, 0,
             [&](int) { return CudaLaunches().rms_norm(norm, bench.stream()); });
  norm.rows = 1;
  bench.Line("rms_norm+add 1x2048", 0, 0, [&](int) { return CudaLaunches().rms_norm(norm, bench.stream()); });
  const CudaAddArgs add = {r.get(), kHidden, y.get(), kHidden, rows, kHidden};
  bench.Line("add 32768x2048", 3 * bytes, 0, [&](int) { return CudaLaunches().add(add, bench.stream()); });

  CudaHeadsArgs heads;
  heads.heads = kHeads + kKvHeads;
  heads.first_heads = kHeads;
  heads.rows = rows * kHidden / (heads.heads * kDim);
  heads.x = x.get();
  heads.x_stride = heads.heads * kDim;
  heads.head_dim = kDim;
  heads.weight = heads.second_weight = w.get();
  heads.epsilon = 1e-6F;
  heads.cos = r.get();
  heads.sin = y.get();
  heads.cos_stride = heads.sin_stride = kDim / 2;
  const double heads_bytes =
      static_cast<double>(heads.rows) * static_cast<double>(heads.heads * kDim * 8 + kDim * 4);
  bench.Line("qk norm + rope 14563x36x128", heads_bytes, 0,
             [&](int) { return CudaLaunches().heads(heads, bench.stream()); });
}

// Instructions of a warp for one group of rows, and those of them that issue every other cycle (minima and
// maxima, compares, logic, integer sums; read from the machine code for sm_90, on the way that normalised
// rows take): with bytes, the floor of the gate.
struct GateCase {
  std::int64_t experts;
  std::int64_t rows_a_warp;
  double instructions;
  double half_rate;
};
constexpr GateCase kGateCases[] = {
    {8, 32, 281, 154}, {32, 8, 300, 186}, {64, 8, 388, 264}, {128, 8, 565, 420}, {256, 8, 918, 730}};

void BenchGate(Bench& bench) {
  int processors = 0;
  int khz = 0;
  MustRun(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "attribute");
  MustRun(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0), "attribute");
  const DeviceArray<float> logits = RandomArray<float>(std::size_t{1} << 27, 17, 4);
  for (const GateCase& c : kGateCases) {
    const std::int64_t rows = (std::int64_t{1} << 27) / c.experts;
    const std::int64_t chosen = std::min(kChosen, c.experts / 4);
    const DeviceArray<std::int32_t> ids(static_cast<std::size_t>(rows * chosen));
    const DeviceArray<float> weights(static_cast<std::size_t>(rows * chosen));
    CudaGateArgs args;
    args.logits = logits.get();
    args.logits_stride = args.num_experts = c.experts;
    args.rows = rows;
    args.experts_per_row = chosen;
    args.normalize = true;
    args.experts = ids.get();
    args.weights = weights.get();
    const double bytes = static_cast<double>(rows) * static_cast<double>(c.experts * 4 + chosen * 8);
    const std::string name = absl::StrCat("gate ", rows, "x", c.experts, " top ", chosen);
    const auto run = [&](int) { return CudaLaunches().gate(args, bench.stream()); };
    const double seconds = bench.Line(name, bytes, 0, run);
    if (seconds > 0) {
      const double issue = static_cast<double>(rows) / static_cast<double>(c.rows_a_warp) *
                           (c.instructions + c.half_rate) / (4.0 * processors * khz * 1e3);
      std::printf("  floors: %.1f us of bytes, %.1f us of issue at %d MHz: %.1f %% of the higher\n",
                  bytes / bench.copy_bandwidth * 1e6, issue * 1e6, khz / 1000,
                  100 * std::max(bytes / bench.copy_bandwidth, issue) / seconds);
    }
    args.normalize = false;
    bench.Line(name + " softmax", bytes, 0, run);
    args.rows = 1;
    bench.Line(absl::StrCat("gate 1x", c.experts, " top ", chosen), 0, 0, run);
  }
}

void BenchMoe(Bench& bench) {
  const std::int64_t rows = 8192;
  const auto pairs = static_cast<std::size_t>(rows * kChosen);
  {
    const DeviceArray<float> y = RandomArray<float>(pairs * kHidden, 9, 1);
    const DeviceArray<float> out = RandomArray<float>(static_cast<std::size_t>(rows * kHidden), 11, 1);
    const DeviceArray<float> weights = RandomArray<float>(pairs, 13, 1);
    std::vector<std::int32_t> source(pairs);
    Random random(15);
    std::iota(source.begin(), source.end(), 0);
    for (std::size_t i = pairs - 1; i > 0; --i) {
      std::swap(source[i], source[static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(i + 1)))]);
    }
    const DeviceArray<std::int32_t> sources(source);
    CudaCombineArgs args;
    args.y = y.get();
    args.y_stride = args.out_stride = kHidden;
    args.source = sources.get();
    args.weights = weights.get();
    args.experts_per_row = kChosen;
    args.out = out.get();
    args.rows = rows;
    args.cols = kHidden;
    bench.Line("combine 8192x8x2048", static_cast<double>(rows * kHidden) * 4 * (kChosen + 2), 0,
               [&](int) { return CudaLaunches().combine(args, bench.stream()); });
    args.rows = 1;
    bench.Line("combine 1x8x2048", 0, 0, [&](int) { return CudaLaunches().combine(args, bench.stream()); });
  }
  BenchGate(bench);
  for (const std::int64_t tokens : {1, 16, 256, 2048}) {
    const auto count = static_cast<std::size_t>(tokens * kChosen);
    std::vector<std::int32_t> ids(count);
    Random random(19);
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(random.Below(128));
    }
    const DeviceArray<std::int32_t> experts(ids);
    const DeviceArray<std::uint64_t> slots(std::vector<std::uint64_t>(128, 256));
    const DeviceArray<CudaExpertWork> work(128);
    const DeviceArray<std::int32_t> grouped(count);
    const DeviceArray<std::int32_t> source(count);
    const CudaDispatchArgs args = {experts.get(), tokens,        kChosen,      128,    slots.get(),
                                   work.get(),    grouped.get(), source.get(), nullptr};
    bench.Line(absl::StrCat("dispatch ", tokens, "x8 of 128"), 0, 0,
               [&](int) { return CudaLaunches().dispatch(args, bench.stream()); });
  }
}

// cublasGemmStridedBatchedEx, for the rate of the same products.
class Batched {
 public:
  Batched() {
    const char* const path = std::getenv("COMOE_CUBLAS");
    void* library = dlopen(path != nullptr ? path : "libcublas.so.13", RTLD_NOW);
    if (library == nullptr) {
      return;
    }
    create_ = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    set_stream_ = reinterpret_cast<int (*)(void*, cudaStream_t)>(dlsym(library, "cublasSetStream_v2"));
    gemm_ = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmStridedBatchedEx"));
    if (create_(&handle_) != 0) {
      handle_ = nullptr;
    }
  }
  explicit operator bool() const { return handle_ != nullptr; }
  // `batch` products y [rows, n] = x [rows, k] w [n, k]^T in BF16, float32 sums, BF16 or float32 results.
  int Run(const std::uint16_t* w, const std::uint16_t* x, void* y, bool y_float, std::int64_t n,
          std::int64_t rows, std::int64_t k, std::int64_t w_stride, int batch, cudaStream_t stream) const {
    const float one = 1;
    const float zero = 0;
    set_stream_(handle_, stream);
    return gemm_(handle_, 1, 0, static_cast<int>(n), static_cast<int>(rows), static_cast<int>(k), &one, w, 14,
                 static_cast<int>(k), w_stride, x, 14, static_cast<int>(k), rows * k, &zero, y,
                 y_float ? 0 : 14, static_cast<int>(n), rows * n, batch, 68, -1);
  }

 private:
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, long long,
                       const void*, int, int, long long, const void*, void*, int, int, long long, int, int,
                       int);
  int (*create_)(void**) = nullptr;
  int (*set_stream_)(void*, cudaStream_t) = nullptr;
  Gemm gemm_ = nullptr;
  void* handle_ = nullptr;
};

void BenchBlas(Bench& bench, const Batched& batched) {
  const DeviceArray<std::uint16_t> w = RandomArray<std::uint16_t>(std::size_t{8192} * 8192, 22, 1);
  const DeviceArray<std::uint16_t> x = RandomArray<std::uint16_t>(std::size_t{8192} * 8192, 24, 1);
  const DeviceArray<std::uint16_t> y(std::size_t{8192} * 8192);
  const double flops = 2.0 * 8192 * 8192 * 8192;
  const double seconds = bench.Seconds([&](int) {
    return batched.Run(w.get(), x.get(), y.get(), false, 8192, 8192, 8192, 0, 1, bench.stream());
  });
  bench.blas_rate = flops / seconds;
  std::printf("cuBLAS 8192^3 bf16: %.0f TFLOP/s\n", bench.blas_rate / 1e12);
}

void BenchFfn(Bench& bench, const Batched& batched) {
  const tensor::BlobLayout layout = tensor::BlobLayout::Make(tensor::DType::kBf16, kHidden, kIntermediate);
  const DeviceArray<std::uint16_t> blobs = RandomArray<std::uint16_t>(layout.bytes / 2 * kExperts, 26, 0.05F);
  const double blob_bytes = static_cast<double>(kHidden * kIntermediate * 3 * 2);
  const std::int64_t most = kExperts * 256;
  const DeviceArray<float> x = RandomArray<float>(static_cast<std::size_t>(4096 * kHidden), 27, 1);
  const DeviceArray<float> scratch(static_cast<std::size_t>(most * kIntermediate));
  const DeviceArray<float> y(static_cast<std::size_t>(most * kHidden));
  const DeviceArray<std::byte> workspace(
      CudaExpertFfnWorkspaceBytes(most, kHidden, kIntermediate, CudaPrecision::kExact));
  std::vector<std::int32_t> grouped(static_cast<std::size_t>(most));
  Random random(28);
  for (std::int32_t& r : grouped) {
    r = static_cast<std::int32_t>(random.Below(4096));
  }
  const DeviceArray<std::int32_t> rows(grouped);
  const auto run = [&](const std::string& name, std::int64_t experts, std::int64_t rows_each,
                       CudaPrecision precision, std::int64_t few) {
    std::vector<CudaExpertWork> works;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      works.push_back({blobs.get() + static_cast<std::size_t>(e) * layout.bytes / 2,
                       static_cast<std::int32_t>(e % experts * rows_each),
                       static_cast<std::int32_t>(rows_each)});
    }
    const DeviceArray<CudaExpertWork> work(works);
    CudaExpertFfnArgs args;
    args.x = x.get();
    args.x_stride = kHidden;
    args.x_rows = 4096;
    args.grouped = rows.get();
    args.num_work = experts;
    args.max_rows = rows_each;
    args.total_rows = experts * rows_each;
    args.hidden = kHidden;
    args.intermediate = kIntermediate;
    args.gate_up_offset = static_cast<std::int64_t>(layout.gate_up_offset);
    args.down_offset = static_cast<std::int64_t>(layout.down_offset);
    args.scratch = scratch.get();
    args.scratch_stride = kIntermediate;
    args.y = y.get();
    args.y_stride = kHidden;
    args.precision = precision;
    args.few_rows = few;
    args.workspace = workspace.get();
    args.workspace_bytes = workspace.bytes();
    const double flops =
        static_cast<double>(experts * rows_each) * 6 * static_cast<double>(kHidden * kIntermediate);
    return bench.Line(name, static_cast<double>(experts) * blob_bytes, rows_each >= 32 ? flops : 0,
                      [&](int i) {
                        args.work = work.get() + i % (kExperts / experts) * experts;
                        return CudaLaunches().expert_ffn(args, bench.stream());
                      });
  };
  for (const CudaPrecision precision : {CudaPrecision::kBf16, CudaPrecision::kExact}) {
    const std::string suffix = precision == CudaPrecision::kExact ? " exact" : " bf16";
    run("ffn 8 experts x 1 row" + suffix, 8, 1, precision, 0);
    for (const std::int64_t each : {1, 4, 8}) {
      run(absl::StrCat("ffn 64 experts x ", each, " rows", suffix), kExperts, each, precision, 0);
    }
    for (const std::int64_t each : {8, 16, 32, 64, 128, 256}) {
      run(absl::StrCat("ffn 64 experts x ", each, " rows, tiles", suffix), kExperts, each, precision, 1);
    }
  }
  if (batched) {
    // The same two products, without gather, SwiGLU and rounding.
    const DeviceArray<std::uint16_t> xb =
        RandomArray<std::uint16_t>(static_cast<std::size_t>(most * kHidden), 30, 1);
    const DeviceArray<std::uint16_t> hb =
        RandomArray<std::uint16_t>(static_cast<std::size_t>(most * kIntermediate * 2), 32, 1);
    const auto stride = static_cast<std::int64_t>(layout.bytes / 2);
    const double flops = static_cast<double>(most) * 6 * static_cast<double>(kHidden * kIntermediate);
    bench.Line("ffn 64 experts x 256 rows, cuBLAS batched", 0, flops, [&](int) {
      const int error = batched.Run(blobs.get(), xb.get(), hb.get(), false, 2 * kIntermediate, 256, kHidden,
                                    stride, kExperts, bench.stream());
      return error != 0 ? error
                        : batched.Run(blobs.get() + layout.down_offset / 2, hb.get(), y.get(), true, kHidden,
                                      256, kIntermediate, stride, kExperts, bench.stream());
    });
  }
}

void BenchMatMul(Bench& bench) {
  void* blas = nullptr;
  CudaLaunches().blas_create(&blas);
  const std::int64_t vocab = 151936;
  const DeviceArray<std::uint16_t> w =
      RandomArray<std::uint16_t>(static_cast<std::size_t>(vocab * kHidden), 34, 0.05F);
  const DeviceArray<float> x = RandomArray<float>(static_cast<std::size_t>(2048 * kHidden), 35, 1);
  const DeviceArray<float> y(static_cast<std::size_t>(2048) * 5120);
  const DeviceArray<std::byte> workspace(CudaMatMulWorkspaceBytes(2048, kHidden, CudaPrecision::kExact));
  const auto run = [&](const std::string& name, std::int64_t rows, std::int64_t n, CudaPrecision precision,
                       void* handle) {
    const double bytes = static_cast<double>(n * kHidden * 2);
    const double flops = 2.0 * static_cast<double>(rows * n) * static_cast<double>(kHidden);
    const auto sets = static_cast<int>(vocab / n);
    bench.Line(name, rows <= 32 ? bytes : 0, rows > 32 ? flops : 0, [&](int i) {
      CudaMatMulArgs args;
      args.x = x.get();
      args.x_stride = kHidden;
      args.w = w.get() + static_cast<std::size_t>(i % sets) * static_cast<std::size_t>(n * kHidden);
      args.y = y.get();
      args.y_stride = n;
      args.rows = rows;
      args.n = n;
      args.k = kHidden;
      args.precision = precision;
      args.workspace = workspace.get();
      args.workspace_bytes = workspace.bytes();
      args.blas = handle;
      return CudaLaunches().matmul(args, bench.stream());
    });
  };
  for (const CudaPrecision precision : {CudaPrecision::kBf16, CudaPrecision::kExact}) {
    const std::string suffix = precision == CudaPrecision::kExact ? " exact" : " bf16";
    for (const std::int64_t rows : {1, 8, 32}) {
      run(absl::StrCat("matmul head 151936x2048 T=", rows, suffix), rows, vocab, precision, nullptr);
    }
    for (const std::int64_t rows : {1, 8, 32}) {
      run(absl::StrCat("matmul qkv 5120x2048 T=", rows, suffix), rows, 5120, precision, nullptr);
    }
    run(absl::StrCat("matmul router 128x2048 T=1", suffix), 1, 128, precision, nullptr);
    run(absl::StrCat("matmul qkv 5120x2048 T=2048 tiles", suffix), 2048, 5120, precision, nullptr);
    if (blas != nullptr) {
      run(absl::StrCat("matmul qkv 5120x2048 T=32 cuBLAS", suffix), 32, 5120, precision, blas);
      run(absl::StrCat("matmul qkv 5120x2048 T=2048 cuBLAS", suffix), 2048, 5120, precision, blas);
    }
  }
  if (blas != nullptr) {
    CudaLaunches().blas_destroy(blas);
  }
}

void BenchAttention(Bench& bench) {
  for (const CudaDType dtype : {CudaDType::kF16, CudaDType::kF32}) {
    const std::int64_t element = dtype == CudaDType::kF16 ? 2 : 4;
    const std::int64_t tokens = 64 * 4096;
    const auto size = static_cast<std::size_t>(tokens * kKvHeads * kDim * 2);
    const DeviceArray<std::uint16_t> kv = dtype == CudaDType::kF16 ? RandomArray<std::uint16_t>(size, 37, 1)
                                                                   : DeviceArray<std::uint16_t>(size * 2);
    if (dtype == CudaDType::kF32) {
      const DeviceArray<float> floats = RandomArray<float>(size, 39, 1);
      MustRun(cudaMemcpy(kv.get(), floats.get(), size * 4, cudaMemcpyDeviceToDevice), "copy");
      MustRun(cudaDeviceSynchronize(), "copy");
    }
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(tokens / 16));
    std::iota(blocks.begin(), blocks.end(), 0);
    Random random(41);
    for (std::size_t i = blocks.size() - 1; i > 0; --i) {
      std::swap(blocks[i], blocks[static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(i + 1)))]);
    }
    const DeviceArray<std::int32_t> table(blocks);
    const DeviceArray<float> q = RandomArray<float>(static_cast<std::size_t>(4096 * kHeads * kDim), 43, 1);
    const DeviceArray<float> out(static_cast<std::size_t>(4096 * kHeads * kDim));
    const DeviceArray<std::byte> workspace(std::max({CudaAttentionWorkspaceBytes(64, kHeads, kDim, 4096),
                                                     CudaAttentionWorkspaceBytes(256, kHeads, kDim, 1024),
                                                     CudaAttentionWorkspaceBytes(16, kHeads, kDim, 8192),
                                                     CudaAttentionWorkspaceBytes(1, kHeads, kDim, 32768)}));
    const auto run = [&](const std::string& name, std::int64_t sequences, std::int64_t context,
                         std::int64_t rows, std::int64_t heads, CudaPrecision precision) {
      std::vector<CudaSpan> list;
      for (std::int64_t s = 0; s < 64 * 4096 / context; ++s) {
        list.push_back({static_cast<std::int32_t>(s % sequences * rows), static_cast<std::int32_t>(rows),
                        static_cast<std::int32_t>(context - rows),
                        static_cast<std::int32_t>(s * context / 16)});
      }
      const DeviceArray<CudaSpan> spans(list);
      CudaAttentionArgs args;
      args.queries = q.get();
      args.queries_stride = args.out_stride = heads * kDim;
      args.kv.data = kv.get();
      args.kv.dtype = dtype;
      args.kv.kv_heads = kKvHeads;
      args.kv.head_dim = kDim;
      args.kv.blocks = table.get();
      args.kv.num_spans = sequences;
      args.kv.max_span_rows = rows;
      args.heads = heads;
      args.scale = 0.0884F;
      args.out = out.get();
      args.precision = precision;
      args.max_context = context;
      args.workspace = workspace.get();
      args.workspace_bytes = workspace.bytes();
      const double counted =
          static_cast<double>(sequences) * (static_cast<double>(context - rows) * static_cast<double>(rows) +
                                            static_cast<double>(rows) * static_cast<double>(rows + 1) / 2);
      const double bytes = static_cast<double>(sequences * context * kKvHeads * kDim * 2 * element);
      bench.Line(name, rows == 1 ? bytes : 0,
                 rows > 1 ? 4.0 * counted * static_cast<double>(heads * kDim) : 0, [&](int i) {
                   args.kv.spans =
                       spans.get() + i % (static_cast<int>(list.size()) / static_cast<int>(sequences)) *
                                         static_cast<int>(sequences);
                   return rows == 1 ? CudaLaunches().attention_decode(args, bench.stream())
                                    : CudaLaunches().attention_prefill(args, bench.stream());
                 });
    };
    for (const CudaPrecision precision : {CudaPrecision::kBf16, CudaPrecision::kExact}) {
      const std::string suffix = absl::StrCat(dtype == CudaDType::kF16 ? " F16" : " F32",
                                              precision == CudaPrecision::kExact ? " exact" : " bf16");
      run("decode 64 x 4096, 32/4 heads" + suffix, 64, 4096, 1, 32, precision);
      run("decode 64 x 4096, 4/4 heads" + suffix, 64, 4096, 1, 4, precision);
      run("decode 256 x 1024, 32/4 heads" + suffix, 256, 1024, 1, 32, precision);
      run("decode 1 x 4096, 32/4 heads" + suffix, 1, 4096, 1, 32, precision);
      run("decode 1 x 32768, 32/4 heads" + suffix, 1, 32768, 1, 32, precision);
      for (const std::int64_t sequences : {1, 4, 16}) {
        for (const std::int64_t context : {1024, 2048, 8192}) {
          if (precision == CudaPrecision::kExact) {
            run(absl::StrCat("decode ", sequences, " x ", context, ", 32/4 heads", suffix), sequences,
                context, 1, 32, precision);
          }
        }
      }
      run("prefill 1 x 4096, 32/4 heads" + suffix, 1, 4096, 4096, 32, precision);
      run("prefill 4 x 512 at 4096, 32/4 heads" + suffix, 4, 4096, 512, 32, precision);
    }
    const DeviceArray<CudaSpan> spans(std::vector<CudaSpan>{{0, 4096, 0, 0}});
    CudaAppendKvArgs append = {q.get(), kKvHeads * kDim, q.get(), kKvHeads * kDim, {}};
    append.kv = {kv.get(), dtype, kKvHeads, kDim, spans.get(), table.get(), 1, 4096};
    bench.Line(absl::StrCat("append_kv 4096 rows", dtype == CudaDType::kF16 ? " F16" : " F32"),
               4096.0 * kKvHeads * kDim * 2 * static_cast<double>(4 + element), 0,
               [&](int) { return CudaLaunches().append_kv(append, bench.stream()); });
  }
}

void BenchTopK(Bench& bench) {
  const std::int64_t vocab = 151936;
  const std::int64_t rows = 512;
  const DeviceArray<float> logits = RandomArray<float>(static_cast<std::size_t>(rows * vocab), 45, 8);
  const DeviceArray<std::int32_t> ids(static_cast<std::size_t>(rows * 64));
  const DeviceArray<std::byte> workspace(CudaTopKWorkspaceBytes(rows, 64));
  for (const std::int64_t k : {1, 64}) {
    for (const std::int64_t t : {std::int64_t{1}, rows}) {
      CudaTopKArgs args;
      args.logits = logits.get();
      args.logits_stride = args.vocab = vocab;
      args.rows = t;
      args.k = k;
      args.ids = ids.get();
      args.workspace = workspace.get();
      args.workspace_bytes = workspace.bytes();
      bench.Line(absl::StrCat("top_k ", t, "x151936 k=", k), t > 1 ? static_cast<double>(t * vocab * 4) : 0,
                 0, [&](int) { return CudaLaunches().top_k(args, bench.stream()); });
    }
  }
}

int Main(int argc, char** argv) {
  std::FILE* json = argc > 1 ? std::fopen(argv[1], "w") : nullptr;
  Bench bench(json, argc > 2 ? argv[2] : "");
  cudaDeviceProp properties;
  MustRun(cudaGetDeviceProperties(&properties, 0), "properties");
  std::printf("%s, %d multiprocessors, %d MB L2\n", properties.name, properties.multiProcessorCount,
              properties.l2CacheSize >> 20);
  BenchCopy(bench);
  const Batched batched;
  if (batched) {
    BenchBlas(bench, batched);
  }
  BenchFfn(bench, batched);
  BenchMatMul(bench);
  BenchAttention(bench);
  BenchMoe(bench);
  BenchRows(bench);
  BenchTopK(bench);
  if (json != nullptr) {
    std::fclose(json);
  }
  return 0;
}

}  // namespace
}  // namespace comoe::kernels

int main(int argc, char** argv) { return comoe::kernels::Main(argc, argv); }
