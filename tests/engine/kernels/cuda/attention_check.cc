// Appending keys and values, decode and prefill attention: against the reference, NaN where nothing counts,
// and the promises about neighbours and chunks.
#include "tests/engine/kernels/cuda/gpu_check.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kBlock = tensor::kKvBlockTokens;

struct Shape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t dim = 64;
  std::int64_t window = 0;
  tensor::DType kv = tensor::DType::kF16;

  std::string ToString() const {
    return absl::StrCat("H=", heads, " G=", kv_heads, " P=", dim, " window=", window, " KV ",
                        tensor::DTypeName(kv));
  }
};

struct Sequence {
  std::int64_t start = 0;
  std::int64_t rows = 1;
};

// A step of some sequences over a pool of blocks that is NaN where nothing was stored.
class Step {
 public:
  Step(const Shape& shape, const std::vector<Sequence>& sequences, std::uint64_t seed)
      : shape_(shape), sequences_(sequences), random_(seed) {
    std::int64_t blocks = 0;
    for (const Sequence& s : sequences) {
      rows_ += s.rows;
      most_rows_ = std::max(most_rows_, s.rows);
      longest_ = std::max(longest_, s.start + s.rows);
      blocks += (s.start + s.rows + kBlock - 1) / kBlock;
    }
    const tensor::KvLayout layout = {shape.kv_heads, shape.dim, shape.kv};
    pool_ = AllocateAligned(static_cast<std::size_t>(blocks + 2) * layout.block_bytes());
    std::memset(pool_.get(), 0xff, static_cast<std::size_t>(blocks + 2) * layout.block_bytes());
    kv_ = {pool_.get(), blocks + 2, layout};
    std::vector<base::BlockId> ids;
    for (std::int64_t b = 0; b < blocks; ++b) {
      ids.push_back(base::BlockId{static_cast<std::int32_t>(b + 1)});
    }
    for (std::int64_t b = blocks - 1; b > 0; --b) {
      std::swap(ids[static_cast<std::size_t>(b)], ids[static_cast<std::size_t>(random_.Below(b + 1))]);
    }
    std::size_t next = 0;
    for (const Sequence& s : sequences) {
      const auto count = static_cast<std::size_t>((s.start + s.rows + kBlock - 1) / kBlock);
      tables_.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(next),
                           ids.begin() + static_cast<std::ptrdiff_t>(next + count));
      next += count;
    }
    FillHistory();
  }

  std::int64_t rows() const { return rows_; }

  // Appends on both sides, compares the pools, attends with `prefill` or decode, compares.
  void Check(Checker& checker, CudaPrecision precision, bool prefill, const TestStream& cpu) {
    Matrix queries(rows_, shape_.heads * shape_.dim, random_);
    Matrix keys(rows_, shape_.kv_heads * shape_.dim, random_);
    Matrix values(rows_, shape_.kv_heads * shape_.dim, random_);
    keys.at(0, 0) = 1e6F;  // beyond a half
    keys.at(0, 0) = shape_.kv == tensor::DType::kF16 ? 70000.0F : 3.0F;
    queries.at(0, 0) = 0;
    const std::vector<SequenceRows> sequences = Rows();
    std::string what =
        absl::StrCat(prefill ? "prefill " : "decode ", shape_.ToString(), " rows ", rows_, " longest ",
                     longest_, precision == CudaPrecision::kExact ? " exact" : " rounded");
    const DeviceArray<std::byte> pool(pool_.get(),
                                      static_cast<std::size_t>(kv_.num_blocks) * kv_.layout.block_bytes());
    const DeviceMatrix dk(keys);
    const DeviceMatrix dv(values);
    CudaKv kv = Upload(pool);
    checker.Launched(
        CudaLaunches().append_kv({dk.get(), dk.stride(), dv.get(), dv.stride(), kv}, checker.stream()), what);
    MustRun(RefKernels().append_kv({keys.view(), values.view(), sequences, kv_}, *cpu).ok() ? 0 : 1,
            "ref append");
    const std::vector<std::byte> stored = pool.Download();
    checker.True(std::memcmp(stored.data(), pool_.get(), stored.size()) == 0, "append_kv " + what);

    Matrix ref(rows_, shape_.heads * shape_.dim);
    MustRun(
        RefKernels()
                .attention({queries.view(), sequences, kv_, shape_.heads, shape_.window, scale(), ref.view()},
                           *cpu)
                .ok()
            ? 0
            : 1,
        "ref attention");
    const Matrix out = Attend(checker, kv, queries, precision, prefill, what);
    // A rounded query of a key of 65504 would be far off: it is 0 there. Rounded values: 2^-9 of each.
    const bool exact = precision == CudaPrecision::kExact || (!prefill && shape_.kv == tensor::DType::kF32);
    checker.Near(ref, out, exact ? 4e-6 : shape_.kv == tensor::DType::kF16 ? 2e-3 : 1e-2, what);
    const Matrix again = Attend(checker, kv, queries, precision, prefill, what);
    checker.True(FirstDifference(out, again, rows_).empty(), what + ": the same bits twice");
  }

  // The same sequences' rows, one sequence a launch (and, for prefill, its rows one by one): the same bits.
  void CheckAlone(Checker& checker, CudaPrecision precision, bool prefill) {
    Matrix queries(rows_, shape_.heads * shape_.dim, random_);
    const DeviceArray<std::byte> pool(pool_.get(),
                                      static_cast<std::size_t>(kv_.num_blocks) * kv_.layout.block_bytes());
    // History beyond the start is not stored yet: give the rows something.
    Matrix keys(rows_, shape_.kv_heads * shape_.dim, random_);
    Matrix values(rows_, shape_.kv_heads * shape_.dim, random_);
    const DeviceMatrix dk(keys);
    const DeviceMatrix dv(values);
    CudaKv kv = Upload(pool);
    const std::string what = absl::StrCat(prefill ? "prefill" : "decode", " alone ", shape_.ToString());
    checker.Launched(
        CudaLaunches().append_kv({dk.get(), dk.stride(), dv.get(), dv.stride(), kv}, checker.stream()), what);
    const Matrix together = Attend(checker, kv, queries, precision, prefill, what);
    const std::vector<CudaSpan> all = spans_;
    Matrix apart(rows_, shape_.heads * shape_.dim);
    for (const CudaSpan& span : all) {
      for (std::int32_t r = 0; r < span.num_rows; ++r) {
        const CudaSpan one = {span.first_row + r, 1, span.start_position + r, span.first_block};
        const DeviceArray<CudaSpan> spans(&one, 1);
        kv.spans = spans.get();
        kv.num_spans = 1;
        kv.max_span_rows = 1;
        const Matrix out = Attend(checker, kv, queries, precision, prefill, what, one.start_position + 1);
        for (std::int64_t c = 0; c < apart.cols(); ++c) {
          apart.at(one.first_row, c) = out.at(one.first_row, c);
        }
      }
    }
    checker.True(FirstDifference(together, apart, rows_).empty(),
                 what + ": the same bits " + FirstDifference(together, apart, rows_));
  }

  // NaN in a key and in a value of the last row: only rows that count it are NaN.
  void CheckNan(Checker& checker, CudaPrecision precision, bool prefill, bool in_key) {
    Matrix queries(rows_, shape_.heads * shape_.dim, random_);
    Matrix keys(rows_, shape_.kv_heads * shape_.dim, random_);
    Matrix values(rows_, shape_.kv_heads * shape_.dim, random_);
    (in_key ? keys : values).at(rows_ - 1, 3) = std::numeric_limits<float>::quiet_NaN();
    const DeviceArray<std::byte> pool(pool_.get(),
                                      static_cast<std::size_t>(kv_.num_blocks) * kv_.layout.block_bytes());
    const DeviceMatrix dk(keys);
    const DeviceMatrix dv(values);
    const CudaKv kv = Upload(pool);
    const std::string what =
        absl::StrCat(prefill ? "prefill" : "decode", in_key ? " NaN key " : " NaN value ", shape_.ToString());
    checker.Launched(
        CudaLaunches().append_kv({dk.get(), dk.stride(), dv.get(), dv.stride(), kv}, checker.stream()), what);
    const Matrix out = Attend(checker, kv, queries, precision, prefill, what);
    bool clean = true;
    bool poisoned = true;
    const std::int64_t group = shape_.heads / shape_.kv_heads * shape_.dim;  // heads that see it
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < out.cols(); ++c) {
        const bool nan = std::isnan(out.at(r, c));
        if (r == rows_ - 1 && c < group) {
          poisoned = poisoned && (nan || (!in_key && c % shape_.dim != 3));
        } else {
          clean = clean && !nan;
        }
      }
    }
    checker.True(clean, what + ": other rows are clean");
    checker.True(poisoned, what + ": the row is NaN");
  }

 private:
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.dim)); }

  std::vector<SequenceRows> Rows() const {
    std::vector<SequenceRows> rows;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      rows.push_back({first, sequences_[i].rows, sequences_[i].start, tables_[i]});
      first += sequences_[i].rows;
    }
    return rows;
  }

  // Keys and values of the positions before the step; those no window reaches stay NaN.
  void FillHistory() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const std::int64_t start = sequences_[i].start;
      const std::int64_t from = shape_.window == 0 ? 0 : std::max<std::int64_t>(0, start - shape_.window + 1);
      for (std::int64_t j = from; j < start; ++j) {
        for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
          for (std::int64_t p = 0; p < shape_.dim; ++p) {
            Put(tables_[i][static_cast<std::size_t>(j / kBlock)], h, p * kBlock + j % kBlock,
                random_.Uniform());
            Put(tables_[i][static_cast<std::size_t>(j / kBlock)], h,
                kv_.layout.key_elements() + j % kBlock * shape_.dim + p, random_.Uniform());
          }
        }
      }
    }
  }
  void Put(base::BlockId block, std::int64_t head, std::int64_t at, float value) {
    tensor::WithStoredType(kv_.layout, [&](auto stored) {
      tensor::StoreKv(value, kv_.keys<decltype(stored)>(block, head) + at);
    });
  }

  CudaKv Upload(const DeviceArray<std::byte>& pool) {
    spans_.clear();
    std::vector<std::int32_t> blocks;
    std::int32_t first = 0;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      spans_.push_back({first, static_cast<std::int32_t>(sequences_[i].rows),
                        static_cast<std::int32_t>(sequences_[i].start),
                        static_cast<std::int32_t>(blocks.size())});
      first += static_cast<std::int32_t>(sequences_[i].rows);
      for (const base::BlockId id : tables_[i]) {
        blocks.push_back(id.value);
      }
    }
    d_spans_.emplace_back(spans_);
    d_blocks_.emplace_back(blocks);
    CudaKv kv;
    kv.data = pool.get();
    kv.dtype = static_cast<CudaDType>(shape_.kv);
    kv.kv_heads = shape_.kv_heads;
    kv.head_dim = shape_.dim;
    kv.spans = d_spans_.back().get();
    kv.blocks = d_blocks_.back().get();
    kv.num_spans = static_cast<std::int64_t>(spans_.size());
    kv.max_span_rows = most_rows_;
    return kv;
  }

  Matrix Attend(Checker& checker, const CudaKv& kv, Matrix& queries, CudaPrecision precision, bool prefill,
                const std::string& what, std::int64_t longest = 0) {
    Matrix out(rows_, shape_.heads * shape_.dim);
    const DeviceMatrix dq(queries);
    const DeviceMatrix dout(out);
    CudaAttentionArgs args;
    args.queries = dq.get();
    args.queries_stride = dq.stride();
    args.kv = kv;
    args.heads = shape_.heads;
    args.window = shape_.window;
    args.scale = scale();
    args.out = dout.get();
    args.out_stride = dout.stride();
    args.precision = precision;
    args.max_context = longest == 0 ? longest_ : longest;
    const std::int64_t length =
        shape_.window == 0 ? args.max_context : std::min(args.max_context, shape_.window);
    const DeviceArray<std::byte> workspace(
        CudaAttentionWorkspaceBytes(kv.num_spans * kv.max_span_rows, shape_.heads, shape_.dim, length));
    args.workspace = workspace.get();
    args.workspace_bytes = workspace.bytes();
    checker.Launched(prefill ? CudaLaunches().attention_prefill(args, checker.stream())
                             : CudaLaunches().attention_decode(args, checker.stream()),
                     what);
    dout.Download(out);
    return out;
  }

  Shape shape_;
  std::vector<Sequence> sequences_;
  Random random_;
  std::int64_t rows_ = 0;
  std::int64_t most_rows_ = 0;
  std::int64_t longest_ = 0;
  AlignedBytes pool_;
  tensor::KvView kv_;
  std::vector<std::vector<base::BlockId>> tables_;
  std::vector<CudaSpan> spans_;
  std::vector<DeviceArray<CudaSpan>> d_spans_;
  std::vector<DeviceArray<std::int32_t>> d_blocks_;
};

}  // namespace

void CheckAttention(Checker& checker, bool quick) {
  const TestStream cpu(1);
  std::uint64_t seed = 6000;
  const std::vector<Sequence> decode = {{0, 1}, {15, 1}, {16, 1}, {100, 2}, {70, 1}};
  const std::vector<Sequence> prefill = {{0, 37}, {20, 1}, {5, 70}, {64, 16}, {90, 3}};
  const std::vector<Sequence> longer = {{777, 1}, {2100, 1}, {500, 3}};
  for (const tensor::DType kv : {tensor::DType::kF16, tensor::DType::kF32}) {
    for (const CudaPrecision precision : {CudaPrecision::kExact, CudaPrecision::kBf16}) {
      std::vector<Shape> shapes = {{4, 2, 64, 0, kv},  {8, 1, 128, 0, kv}, {3, 1, 128, 33, kv},
                                   {2, 2, 64, 40, kv}, {2, 1, 16, 0, kv},  {4, 2, 80, 21, kv}};
      if (!quick) {
        shapes.insert(shapes.end(), {{20, 1, 64, 0, kv},
                                     {16, 2, 128, 100, kv},
                                     {5, 5, 128, 0, kv},
                                     {6, 2, 64, 0, kv},
                                     {14, 2, 128, 0, kv},
                                     {2, 1, 256, 0, kv}});
      }
      for (const Shape& shape : shapes) {
        Step(shape, decode, ++seed).Check(checker, precision, false, cpu);
        Step(shape, prefill, ++seed).Check(checker, precision, true, cpu);
        if (!quick) {
          Step(shape, longer, ++seed).Check(checker, precision, false, cpu);
        }
      }
      for (const std::int64_t dim : {std::int64_t{64}, std::int64_t{128}}) {
        const Shape shape = {4, 2, dim, 0, kv};
        Step(shape, decode, ++seed).CheckAlone(checker, precision, false);
        Step({4, 2, dim, 24, kv}, decode, ++seed).CheckAlone(checker, precision, false);
        // Of up to eight pieces alone, of more beside others: the pieces are added in two ways.
        Step(shape, longer, ++seed).CheckAlone(checker, precision, false);
        Step(shape, {{0, 30}, {50, 40}}, ++seed).CheckAlone(checker, precision, true);
        Step({4, 2, dim, 24, kv}, {{0, 30}, {50, 40}}, ++seed).CheckAlone(checker, precision, true);
        for (const bool in_key : {false, true}) {
          Step(shape, decode, ++seed).CheckNan(checker, precision, false, in_key);
          Step(shape, prefill, ++seed).CheckNan(checker, precision, true, in_key);
        }
      }
    }
    checker.Summary(kv == tensor::DType::kF16 ? "attention F16" : "attention F32");
  }
}

}  // namespace comoe::kernels
