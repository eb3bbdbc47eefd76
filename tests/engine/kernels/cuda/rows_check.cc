// Embedding, norms, rotary embedding, addition, clamping, highest logits.
#include <numeric>

#include "tests/engine/kernels/cuda/gpu_check.h"

namespace comoe::kernels {
namespace {

const CudaLaunchTable& Table() { return CudaLaunches(); }

void CheckEmbed(Checker& checker) {
  Random random(100);
  for (const tensor::DType dtype : kDTypes) {
    for (const std::int64_t cols : {std::int64_t{7}, std::int64_t{256}, std::int64_t{2049}}) {
      const std::int64_t vocab = 50;
      const std::vector<std::byte> table = Encode(dtype, RandomValues(vocab * cols, random));
      const std::vector<std::int32_t> ids = {0, 49, 7, 7, 31};
      Matrix out(5, cols);
      Matrix ref(5, cols);
      for (std::int64_t t = 0; t < 5; ++t) {
        for (std::int64_t d = 0; d < cols; ++d) {
          ref.at(t, d) = tensor::LoadElement(
              table.data(), dtype, static_cast<std::size_t>(ids[static_cast<std::size_t>(t)] * cols + d));
        }
      }
      const DeviceArray<std::byte> device_table(table);
      const DeviceArray<std::int32_t> device_ids(ids);
      const DeviceMatrix device_out(out);
      checker.Launched(Table().embed({device_ids.get(), device_table.get(), static_cast<CudaDType>(dtype),
                                      device_out.get(), device_out.stride(), 5, cols},
                                     checker.stream()),
                       "embed");
      device_out.Download(out);
      checker.Near(ref, out, 0, absl::StrCat("embed D=", cols));
    }
  }
  checker.Summary("embed");
}

void CheckNorm(Checker& checker, std::int64_t rows, std::int64_t width, std::int64_t groups, bool add,
               std::int64_t padding, const TestStream& cpu) {
  Random random(200 + static_cast<std::uint64_t>(width));
  Matrix x(rows, groups * width, random, padding);
  Matrix y(rows, groups * width, padding);
  Matrix ref(rows, groups * width, padding);
  Matrix residual(rows, groups * width, random, padding);
  const std::vector<float> weight = RandomValues(width, random);
  const DeviceMatrix dx(x);
  const DeviceMatrix dr(residual);
  const DeviceMatrix dy(y);
  const DeviceArray<float> dw(weight);
  CudaRmsNormArgs args;
  args.x = dx.get();
  args.x_stride = dx.stride();
  if (add) {
    args.add = dr.get();
    args.add_stride = dr.stride();
    args.sum = dx.get();
    args.sum_stride = dx.stride();
  }
  args.weight = dw.get();
  args.y = dy.get();
  args.y_stride = dy.stride();
  const DeviceMatrix mapped(ref);  // stands in for the host's
  if (groups == 1) {
    args.mapped_y = mapped.get();
    args.mapped_y_stride = mapped.stride();
  }
  args.rows = rows;
  args.width = width;
  args.groups = groups;
  args.epsilon = 1e-5F;
  const std::string what = absl::StrCat("rms_norm T=", rows, " W=", width, " groups=", groups,
                                        add ? " add" : "", " pad ", padding);
  checker.Launched(Table().rms_norm(args, checker.stream()), what);
  dy.Download(y);
  if (groups == 1) {
    Matrix second(rows, width, padding);
    mapped.Download(second);
    checker.Near(y, second, 0, what + " mapped");
  }
  if (add) {
    MustRun(RefKernels().add({residual.view(), x.view()}, *cpu).ok() ? 0 : 1, "ref add");
    Matrix sum(rows, groups * width, padding);
    dx.Download(sum);
    checker.Near(x, sum, 0, what + " sum");
  }
  MustRun(RefKernels().rms_norm({x.view(), weight, 1e-5F, groups, ref.view()}, *cpu).ok() ? 0 : 1,
          "ref norm");
  checker.Near(ref, y, kFloatTolerance, what);
}

void CheckHeads(Checker& checker, std::int64_t rows, std::int64_t heads, std::int64_t first, std::int64_t dim,
                bool norm, bool rope, const TestStream& cpu) {
  Random random(300 + static_cast<std::uint64_t>(dim));
  Matrix x(rows, heads * dim, random);
  Matrix cos(rows, dim / 2, random);
  Matrix sin(rows, dim / 2, random);
  const std::vector<float> weight = RandomValues(dim, random);
  const std::vector<float> second = RandomValues(dim, random);
  const DeviceMatrix dx(x);
  const DeviceMatrix dcos(cos);
  const DeviceMatrix dsin(sin);
  const DeviceArray<float> dw(weight);
  const DeviceArray<float> ds(second);
  CudaHeadsArgs args;
  args.x = dx.get();
  args.x_stride = dx.stride();
  args.rows = rows;
  args.heads = heads;
  args.first_heads = first;
  args.head_dim = dim;
  if (norm) {
    args.weight = dw.get();
    args.second_weight = ds.get();
  }
  args.epsilon = 1e-6F;
  if (rope) {
    args.cos = dcos.get();
    args.sin = dsin.get();
    args.cos_stride = dcos.stride();
    args.sin_stride = dsin.stride();
  }
  const std::string what =
      absl::StrCat("heads T=", rows, " H=", heads, " P=", dim, norm ? " norm" : "", rope ? " rope" : "");
  checker.Launched(Table().heads(args, checker.stream()), what);
  Matrix out(rows, heads * dim);
  dx.Download(out);
  if (norm) {
    const tensor::TensorView low = x.view().Cols(0, first * dim);
    const tensor::TensorView high = x.view().Cols(first * dim, (heads - first) * dim);
    MustRun(RefKernels().rms_norm({low, weight, 1e-6F, first, low}, *cpu).ok() ? 0 : 1, "ref norm");
    MustRun(RefKernels().rms_norm({high, second, 1e-6F, heads - first, high}, *cpu).ok() ? 0 : 1, "ref norm");
  }
  if (rope) {
    MustRun(RefKernels().rope({x.view(), heads, cos.view(), sin.view()}, *cpu).ok() ? 0 : 1, "ref rope");
  }
  checker.Near(x, out, kFloatTolerance, what);
}

void CheckElements(Checker& checker, std::int64_t rows, std::int64_t cols, std::int64_t padding,
                   const TestStream& cpu) {
  Random random(400 + static_cast<std::uint64_t>(cols));
  Matrix x(rows, cols, random, padding);
  Matrix y(rows, cols, random, padding);
  if (rows > 0) {
    x.at(0, 0) = std::numeric_limits<float>::quiet_NaN();
  }
  const DeviceMatrix dx(x);
  const DeviceMatrix dy(y);
  const std::string what = absl::StrCat("T=", rows, " D=", cols, " pad ", padding);
  checker.Launched(Table().clamp({dx.get(), dx.stride(), rows, cols, 0.5F}, checker.stream()),
                   "clamp " + what);
  MustRun(RefKernels().clamp({x.view(), 0.5F}, *cpu).ok() ? 0 : 1, "ref clamp");
  Matrix out(rows, cols, padding);
  dx.Download(out);
  if (rows > 0) {
    checker.True(std::isnan(out.at(0, 0)), "clamp keeps NaN " + what);
    x.at(0, 0) = out.at(0, 0) = 0.25F;
    MustRun(cudaMemcpy(dx.get(), &x.at(0, 0), 4, cudaMemcpyHostToDevice), "upload");
    MustRun(cudaDeviceSynchronize(), "upload");
  }
  checker.Near(x, out, 0, "clamp " + what);
  checker.Launched(Table().add({dx.get(), dx.stride(), dy.get(), dy.stride(), rows, cols}, checker.stream()),
                   "add " + what);
  MustRun(RefKernels().add({x.view(), y.view()}, *cpu).ok() ? 0 : 1, "ref add");
  dy.Download(out);
  checker.Near(y, out, 0, "add " + what);
}

void CheckTopK(Checker& checker, std::int64_t rows, std::int64_t vocab, std::int64_t k) {
  Random random(500 + static_cast<std::uint64_t>(vocab + k));
  Matrix logits(rows, vocab, random);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t v = 0; v < vocab; ++v) {
      // Few distinct values, so that equals occur; some NaN, infinities and both zeros.
      float& x = logits.at(t, v);
      x = std::floor(x * 50) / 50;
      x = t == 1 && v % 97 == 5 ? std::numeric_limits<float>::quiet_NaN() : v % 101 == 6 ? -0.0F : x;
      x = v % 211 == 3 ? -std::numeric_limits<float>::infinity() : x;
    }
  }
  const DeviceMatrix dl(logits);
  const DeviceArray<std::int32_t> ids(static_cast<std::size_t>(rows * k));
  const DeviceArray<float> values(static_cast<std::size_t>(rows * k));
  const DeviceArray<std::byte> workspace(CudaTopKWorkspaceBytes(rows, k));
  CudaTopKArgs args;
  args.logits = dl.get();
  args.logits_stride = dl.stride();
  args.rows = rows;
  args.vocab = vocab;
  args.k = k;
  args.ids = ids.get();
  args.values = values.get();
  args.workspace = workspace.get();
  args.workspace_bytes = workspace.bytes();
  const std::string what = absl::StrCat("top_k T=", rows, " V=", vocab, " k=", k);
  checker.Launched(Table().top_k(args, checker.stream()), what);
  const std::vector<std::int32_t> got = ids.Download();
  const std::vector<float> got_values = values.Download();
  bool same = true;
  for (std::int64_t t = 0; t < rows; ++t) {
    std::vector<std::int32_t> want(static_cast<std::size_t>(vocab));
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(), [&](std::int32_t a, std::int32_t b) {
      const float x = logits.at(t, a);
      const float y = logits.at(t, b);
      return x > y || (std::isnan(x) && !std::isnan(y));
    });
    for (std::int64_t i = 0; i < k; ++i) {
      const auto at = static_cast<std::size_t>(t * k + i);
      const float value = logits.at(t, want[static_cast<std::size_t>(i)]);
      same = same && got[at] == want[static_cast<std::size_t>(i)] &&
             (got_values[at] == value || (std::isnan(value) && std::isnan(got_values[at])));
    }
  }
  checker.True(same, what);
}

}  // namespace

void CheckRows(Checker& checker, bool quick) {
  const TestStream cpu(1);
  CheckEmbed(checker);
  for (const std::int64_t width : {1, 3, 64, 100, 256, 1020, 1024, 2048, 4096, 5120, 7168, 16384, 20000}) {
    if (quick && width > 2048) {
      continue;
    }
    for (const std::int64_t padding : {0, 3, 4}) {
      for (const bool add : {false, true}) {
        CheckNorm(checker, width == 2048 ? 33 : 3, width, 1, add, padding, cpu);
      }
    }
  }
  for (const std::int64_t width : {1, 16, 63, 64, 128, 256}) {
    CheckNorm(checker, 5, width, 7, false, 3, cpu);
  }
  CheckNorm(checker, 0, 64, 1, false, 0, cpu);
  checker.Summary("rms_norm");
  for (const std::int64_t dim : {2, 16, 64, 96, 128, 256, 512}) {
    CheckHeads(checker, 3, 5, 3, dim, true, true, cpu);
    CheckHeads(checker, 1, 6, 5, dim, false, true, cpu);
    CheckHeads(checker, 2, 4, 2, dim, true, false, cpu);
  }
  checker.Summary("heads");
  for (const std::int64_t cols : {1, 5, 255, 256, 1024, 2050}) {
    for (const std::int64_t padding : {0, 3, 4}) {
      CheckElements(checker, cols == 5 ? 70000 / (quick ? 1000 : 1) : 3, cols, padding, cpu);
    }
  }
  CheckElements(checker, 0, 16, 0, cpu);
  checker.Summary("add, clamp");
  for (const std::int64_t vocab : {1, 31, 1000, 8192, 151936, 262144}) {
    for (const std::int64_t k : {1, 2, 17, 64}) {
      if (k <= vocab && !(quick && vocab > 8192)) {
        CheckTopK(checker, vocab > 8192 ? 2 : 3, vocab, k);
      }
    }
  }
  checker.Summary("top_k");
}

}  // namespace comoe::kernels
