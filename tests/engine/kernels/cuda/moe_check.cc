// Gate, dispatch, combine and the expert FFN.
#include <numeric>

#include "tests/engine/kernels/cuda/gpu_check.h"

namespace comoe::kernels {
namespace {

// Rows of equals, of infinities and NaN, among plain ones.
Matrix MixedLogits(std::int64_t rows, std::int64_t experts, Random& random) {
  Matrix logits(rows, experts, random, experts % 2 == 0 ? 4 : 3);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t e = 0; e < experts; ++e) {
      float& x = logits.at(t, e);
      x = t % 3 == 1 ? std::floor(x * 4) : x * 5;  // equals in some rows
      x = t % 3 == 1 && x == 0 && e % 2 == 0 ? -0.0F : x;
      x = t % 4 == 3 && e % 3 == 0 ? -std::numeric_limits<float>::infinity() : x;
      x = t % 5 == 4 && e % 2 == 1 ? std::numeric_limits<float>::quiet_NaN() : x;
    }
  }
  return logits;
}

// Rows whose logits differ in their last bits alone, above and below zero, among plain ones.
Matrix CloseLogits(std::int64_t rows, std::int64_t experts, Random& random) {
  Matrix logits(rows, experts, random, 4);
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto spread = std::int64_t{1} << random.Below(16);
    for (std::int64_t e = 0; e < experts; ++e) {
      const float close = 1 + static_cast<float>(random.Below(spread)) * 0x1p-23F;
      float& x = logits.at(t, e);
      x = t % 8 == 1 ? close : t % 8 == 4 ? -close : t % 16 == 6 ? close * 0x1p-140F : x * 5;
      x = t % 32 == 7 && e % 5 == 0 ? x * 1e37F : x;
    }
  }
  return logits;
}

void CheckGate(Checker& checker, Matrix& logits, std::int64_t chosen, bool normalize, const TestStream& cpu) {
  const std::int64_t rows = logits.rows();
  const std::int64_t experts = logits.cols();
  const auto size = static_cast<std::size_t>(rows * chosen);
  std::vector<std::int32_t> want(size);
  Matrix ref(rows, chosen, 0);
  Matrix out(rows, chosen, 0);
  MustRun(
      RefKernels()
              .moe_gate({logits.view(), chosen, normalize, absl::MakeSpan(want), {ref.view().f32(), size}},
                        *cpu)
              .ok()
          ? 0
          : 1,
      "ref gate");
  const DeviceMatrix dl(logits);
  const DeviceArray<std::int32_t> ids(size);
  const DeviceArray<float> weights(size);
  const DeviceArray<std::int32_t> mapped_ids(size);
  const DeviceArray<float> mapped_weights(size);
  const CudaGateArgs args = {dl.get(),  dl.stride(), rows,          experts,          chosen,
                             normalize, ids.get(),   weights.get(), mapped_ids.get(), mapped_weights.get()};
  const std::string what =
      absl::StrCat("gate T=", rows, " E=", experts, " K=", chosen, normalize ? " norm" : "");
  checker.Launched(CudaLaunches().gate(args, checker.stream()), what);
  checker.True(ids.Download() == want && mapped_ids.Download() == want, what + " experts");
  const std::vector<float> got = weights.Download();
  const std::vector<float> got_mapped = mapped_weights.Download();
  bool nan_right = true;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t k = 0; k < chosen; ++k) {
      const auto at = static_cast<std::size_t>(t * chosen + k);
      nan_right =
          nan_right && std::isnan(got[at]) == std::isnan(ref.at(t, k)) && SameBits(got[at], got_mapped[at]);
      out.at(t, k) = std::isnan(got[at]) ? 0 : got[at];
      ref.at(t, k) = std::isnan(ref.at(t, k)) ? 0 : ref.at(t, k);
    }
  }
  checker.True(nan_right, what + " NaN, mapped copy");
  checker.Near(ref, out, kFloatTolerance, what);
}

void CheckDispatch(Checker& checker, std::int64_t rows, std::int64_t chosen, std::int64_t experts,
                   bool some_absent) {
  Random random(static_cast<std::uint64_t>(3000 + rows + experts));
  const std::int64_t pairs = rows * chosen;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(pairs));
  for (std::int64_t t = 0; t < rows; ++t) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t k = 0; k < chosen; ++k) {
      std::swap(order[static_cast<std::size_t>(k)],
                order[static_cast<std::size_t>(k + random.Below(experts - k))]);
      ids[static_cast<std::size_t>(t * chosen + k)] = order[static_cast<std::size_t>(k)];
    }
  }
  std::vector<std::uint64_t> slots(static_cast<std::size_t>(experts));
  for (std::int64_t e = 0; e < experts; ++e) {
    slots[static_cast<std::size_t>(e)] =
        some_absent && e % 3 == 1 ? 0 : static_cast<std::uint64_t>(4096 + 256 * e);
  }
  const auto max_work = static_cast<std::size_t>(std::min(experts, pairs));
  std::vector<std::int32_t> grouped(ids.size(), -1);
  std::vector<std::int32_t> source(ids.size(), -1);
  struct Work {
    std::uint64_t blob;
    std::int32_t first, rows;
    bool operator==(const Work&) const = default;
  };
  static_assert(sizeof(Work) == sizeof(CudaExpertWork));
  std::vector<Work> work(max_work, Work{0, 0, 0});
  std::size_t at = 0;
  std::size_t used = 0;
  for (std::int32_t e = 0; e < experts; ++e) {
    const std::size_t first = at;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == e && slots[static_cast<std::size_t>(e)] != 0) {
        grouped[at] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / chosen);
        source[i] = static_cast<std::int32_t>(at++);
      }
    }
    if (at > first) {
      work[used++] = {slots[static_cast<std::size_t>(e)], static_cast<std::int32_t>(first),
                      static_cast<std::int32_t>(at - first)};
    }
  }
  const DeviceArray<std::int32_t> d_ids(ids);
  const DeviceArray<std::uint64_t> d_slots(slots);
  const DeviceArray<Work> d_work(max_work);
  const DeviceArray<std::int32_t> d_grouped(ids.size());
  const DeviceArray<std::int32_t> d_source(ids.size());
  const DeviceArray<std::int32_t> d_count(1);
  CudaDispatchArgs args;
  args.experts = d_ids.get();
  args.rows = rows;
  args.experts_per_row = chosen;
  args.num_experts = experts;
  args.slots = d_slots.get();
  args.work = reinterpret_cast<CudaExpertWork*>(d_work.get());
  args.grouped = d_grouped.get();
  args.source = d_source.get();
  args.num_work = d_count.get();
  const std::string what = absl::StrCat("dispatch T=", rows, " K=", chosen, " E=", experts);
  checker.Launched(CudaLaunches().dispatch(args, checker.stream()), what);
  checker.True(d_grouped.Download() == grouped, what + " grouped");
  checker.True(d_source.Download() == source, what + " source");
  checker.True(d_work.Download() == work, what + " work");
  checker.True(d_count.Download()[0] == static_cast<std::int32_t>(used), what + " count");
}

void CheckCombine(Checker& checker, std::int64_t rows, std::int64_t cols, std::int64_t chosen, bool shared,
                  bool gate, std::int64_t padding, bool mapped, const TestStream& cpu) {
  Random random(static_cast<std::uint64_t>(4000 + cols * 16 + chosen));
  Matrix y(std::max<std::int64_t>(rows * chosen, 1), cols, random, padding);
  Matrix shared_out(rows, cols, random, padding);
  Matrix shared_gate(rows, 1, random, padding);
  Matrix out(rows, cols, random, padding);
  const std::vector<float> weights = RandomValues(rows * chosen, random);
  std::vector<std::int32_t> source(static_cast<std::size_t>(rows * chosen));
  for (std::int32_t& s : source) {
    s = static_cast<std::int32_t>(random.Below(rows * chosen));
  }
  const DeviceMatrix dy(y);
  const DeviceMatrix ds(shared_out);
  const DeviceMatrix dg(shared_gate);
  const DeviceMatrix dout(out);
  const DeviceArray<float> dw(weights);
  const DeviceArray<std::int32_t> dsource(source);
  CudaCombineArgs args;
  args.y = dy.get();
  args.y_stride = dy.stride();
  if (mapped) {  // the second half of the rows, as if they were the host's
    args.y_rows = y.rows() / 2;
    args.mapped_y = dy.get() + args.y_rows * dy.stride();
    args.mapped_y_stride = dy.stride();
  }
  args.source = dsource.get();
  args.weights = dw.get();
  args.experts_per_row = chosen;
  MoeCombineArgs ref = {y.view(), source, weights, {}, {}, out.view()};
  if (shared) {
    args.shared = ds.get();
    args.shared_stride = ds.stride();
    ref.shared = shared_out.view();
  }
  if (gate) {
    args.shared_gate = dg.get();
    args.shared_gate_stride = dg.stride();
    ref.shared_gate = shared_gate.view();
  }
  args.out = dout.get();
  args.out_stride = dout.stride();
  args.rows = rows;
  args.cols = cols;
  const std::string what =
      absl::StrCat("combine T=", rows, " D=", cols, " K=", chosen, mapped ? " mapped" : "");
  checker.Launched(CudaLaunches().combine(args, checker.stream()), what);
  MustRun(RefKernels().moe_combine(ref, *cpu).ok() ? 0 : 1, "ref combine");
  Matrix got(rows, cols, padding);
  dout.Download(got);
  checker.Near(out, got, kFloatTolerance, what);
}

// Experts with given numbers of rows over one x; results row by row.
class FfnCase {
 public:
  FfnCase(tensor::DType dtype, std::int64_t hidden, std::int64_t intermediate,
          std::vector<std::int64_t> counts, std::int64_t padding)
      : layout_(tensor::BlobLayout::Make(dtype, hidden, intermediate)),
        random_(static_cast<std::uint64_t>(5000 + hidden * 3 + intermediate)),
        counts_(std::move(counts)),
        total_(std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0})),
        x_(12, hidden, random_, padding),
        scratch_(total_, layout_.gate_up.n / 2, padding),
        y_(total_, hidden, padding) {
    for (std::size_t e = 0; e < counts_.size(); ++e) {
      experts_.push_back(std::make_unique<Expert>(layout_, random_));
      blobs_.emplace_back(experts_.back()->view().data, layout_.bytes);
    }
    for (std::int64_t i = 0; i < total_; ++i) {
      rows_.push_back(static_cast<std::int32_t>(random_.Below(12)));
    }
  }

  Matrix Reference(const TestStream& cpu) {
    Matrix y = y_;
    std::vector<ExpertRows> work;
    std::int64_t first = 0;
    for (std::size_t e = 0; e < counts_.size(); ++e) {
      work.push_back(
          {experts_[e]->view(), {rows_.data() + first, static_cast<std::size_t>(counts_[e])}, first});
      first += counts_[e];
    }
    MustRun(RefKernels().expert_ffn({x_.view(), work, scratch_.view(), y.view()}, *cpu).ok() ? 0 : 1,
            "ref ffn");
    return y;
  }

  Matrix Run(Checker& checker, CudaPrecision precision, std::int64_t few_rows, const std::string& what) {
    std::vector<CudaExpertWork> work;
    std::int64_t first = 0;
    std::int64_t most = 0;
    for (std::size_t e = 0; e < counts_.size(); ++e) {
      work.push_back(
          {blobs_[e].get(), static_cast<std::int32_t>(first), static_cast<std::int32_t>(counts_[e])});
      first += counts_[e];
      most = std::max(most, counts_[e]);
    }
    const DeviceMatrix dx(x_);
    const DeviceMatrix ds(scratch_);
    const DeviceMatrix dy(y_);
    const DeviceArray<std::int32_t> dr(rows_);
    const DeviceArray<CudaExpertWork> dw(work);
    const DeviceArray<std::byte> workspace(
        CudaExpertFfnWorkspaceBytes(total_, layout_.hidden, layout_.intermediate, precision));
    CudaExpertFfnArgs args;
    args.x = dx.get();
    args.x_stride = dx.stride();
    args.x_rows = few_rows == 8 ? 12 : 0;  // rounded once, or for each expert
    args.grouped = dr.get();
    args.work = dw.get();
    args.num_work = static_cast<std::int64_t>(work.size());
    args.max_rows = most;
    args.total_rows = total_;
    args.dtype = static_cast<CudaDType>(layout_.down.dtype);
    args.hidden = layout_.hidden;
    args.intermediate = layout_.intermediate;
    args.gate_up_offset = static_cast<std::int64_t>(layout_.gate_up_offset);
    args.down_offset = static_cast<std::int64_t>(layout_.down_offset);
    args.scratch = ds.get();
    args.scratch_stride = ds.stride();
    args.y = dy.get();
    args.y_stride = dy.stride();
    args.precision = precision;
    args.few_rows = few_rows;
    args.workspace = workspace.get();
    args.workspace_bytes = workspace.bytes();
    checker.Launched(CudaLaunches().expert_ffn(args, checker.stream()), what);
    Matrix y = y_;
    dy.Download(y);
    return y;
  }
  std::int64_t total() const { return total_; }

 private:
  tensor::BlobLayout layout_;
  Random random_;
  std::vector<std::int64_t> counts_;
  std::int64_t total_;
  Matrix x_;
  Matrix scratch_;
  Matrix y_;
  std::vector<std::int32_t> rows_;
  std::vector<std::unique_ptr<Expert>> experts_;
  std::vector<DeviceArray<std::byte>> blobs_;
};

void CheckFfn(Checker& checker, tensor::DType dtype, std::int64_t hidden, std::int64_t intermediate,
              const std::vector<std::int64_t>& counts, std::int64_t padding, const TestStream& cpu) {
  FfnCase ffn(dtype, hidden, intermediate, counts, padding);
  const std::string name = absl::StrCat("expert_ffn D=", hidden, " F=", intermediate, " ",
                                        tensor::DTypeName(dtype), " rows ", ffn.total());
  const Matrix ref = ffn.Reference(cpu);
  for (const std::int64_t few : {std::int64_t{0}, std::int64_t{8}, std::int64_t{1}}) {
    const std::string what = absl::StrCat(name, " few ", few);
    checker.Near(ref, ffn.Run(checker, CudaPrecision::kExact, few, what), kTensorTolerance, what + " exact");
    checker.Near(ref, ffn.Run(checker, CudaPrecision::kBf16, few, what), kRoundedTolerance, what + " bf16");
  }
}

// A row's bits are the same alone and among others, as long as its expert stays with the kernel for few rows.
void CheckFfnAlone(Checker& checker, CudaPrecision precision) {
  FfnCase many(tensor::DType::kBf16, 256, 80, {7, 1, 8}, 4);
  FfnCase one(tensor::DType::kBf16, 256, 80, {1, 1, 1}, 4);
  // One seed: the first row of the first expert is the same in both.
  const Matrix a = many.Run(checker, precision, 8, "ffn of many");
  const Matrix b = many.Run(checker, precision, 8, "ffn of many, again");
  const Matrix c = one.Run(checker, precision, 8, "ffn of one");
  checker.True(FirstDifference(a, b, a.rows()).empty(), "expert_ffn twice: the same bits");
  checker.True(FirstDifference(a, c, 1).empty(), "expert_ffn of a row alone: the same bits");
  // And in tiles of 32, 64, 128 and 256 rows; the last two are another kernel's on some devices.
  Matrix first(1, 256);
  std::string same;
  for (const std::int64_t rows : {9, 40, 100, 300}) {
    FfnCase tiles(tensor::DType::kBf16, 256, 80, {rows, 1, 1}, 4);
    const Matrix y = tiles.Run(checker, precision, 8, "ffn in tiles");
    if (rows == 9) {
      first = y;
    }
    const bool equal = FirstDifference(first, y, 1).empty();
    same += equal ? " same" : " other";
    checker.True(equal || rows > 64, "expert_ffn in tiles: the same bits");
  }
  std::printf("bits of a row in tiles of 32, 64, 128, 256 rows:%s\n", same.c_str());
}

}  // namespace

void CheckMoe(Checker& checker, bool quick) {
  const TestStream cpu(1);
  for (const std::int64_t experts : {1, 5, 32, 60, 64, 128, 200, 256, 512, 1000}) {
    for (const std::int64_t chosen :
         {std::int64_t{1}, std::int64_t{2}, std::int64_t{8}, std::int64_t{33}, experts}) {
      if (chosen <= experts) {
        Random random(static_cast<std::uint64_t>(2000 + experts * 64 + chosen));
        Matrix logits = MixedLogits(21, experts, random);
        CheckGate(checker, logits, chosen, chosen % 2 == 0, cpu);
      }
    }
  }
  for (const std::int64_t experts : {8, 12, 16, 20, 32, 60, 64, 100, 128, 256}) {
    Random random(static_cast<std::uint64_t>(2500 + experts));
    Matrix logits = CloseLogits(quick ? 70 : 1001, experts, random);
    for (const std::int64_t chosen : {1, 3, 4, 8}) {
      CheckGate(checker, logits, chosen, true, cpu);
      CheckGate(checker, logits, chosen, false, cpu);
    }
  }
  checker.Summary("gate");
  CheckDispatch(checker, 1, 8, 128, false);
  CheckDispatch(checker, 1, 1, 1, false);
  CheckDispatch(checker, 7, 4, 32, true);
  CheckDispatch(checker, 65, 2, 1000, true);
  CheckDispatch(checker, quick ? 50 : 2048, 8, 128, true);
  checker.Summary("dispatch");
  for (const std::int64_t cols : {1, 30, 256, 2048, 3000}) {
    for (const std::int64_t chosen : {0, 1, 4, 8, 9}) {
      for (const bool mapped : {false, true}) {
        CheckCombine(checker, 5, cols, chosen, chosen % 2 == 0, chosen == 8, cols % 4 == 0 ? 4 : 3, mapped,
                     cpu);
      }
    }
  }
  checker.Summary("combine");
}

void CheckExpertFfn(Checker& checker, bool quick) {
  const TestStream cpu(1);
  CheckFfn(checker, tensor::DType::kBf16, 32, 16, {1, 0, 2}, 4, cpu);
  CheckFfn(checker, tensor::DType::kBf16, 37, 21, {3, 9, 34}, 3, cpu);
  CheckFfn(checker, tensor::DType::kBf16, 256, 48, {1, 8, 40, 0, 17}, 4, cpu);
  CheckFfn(checker, tensor::DType::kBf16, 80, 200, {130, 1, 65}, 0, cpu);
  CheckFfn(checker, tensor::DType::kF16, 50, 30, {3, 9}, 3, cpu);
  CheckFfn(checker, tensor::DType::kF32, 51, 33, {3, 40}, 3, cpu);
  if (!quick) {
    CheckFfn(checker, tensor::DType::kBf16, 2048, 768, {4, 1}, 0, cpu);
    CheckFfn(checker, tensor::DType::kBf16, 1024, 600, {33, 20}, 0, cpu);
    CheckFfn(checker, tensor::DType::kBf16, 512, 136, {129, 300, 1, 64}, 4, cpu);
  }
  CheckFfnAlone(checker, CudaPrecision::kExact);
  CheckFfnAlone(checker, CudaPrecision::kBf16);
  checker.Summary("expert_ffn");
}

}  // namespace comoe::kernels
