// The inner loops of all matrix products. A tile is R rows times a few panels; each output has two sums in
// registers, over the even and over the odd inputs, and every step of the loop takes one pair of inputs: two
// fused multiply-adds an output. Rows, panels and blocks of inputs only decide which sums are worked on
// together, never their order, so a row's bits do not depend on the tile it is in.
//
// Rows are packed [K, R] before use, so that the loop reads one stream and rows whose stride is a multiple of
// 4 KiB do not fall into one cache set. A single row is read where it lies.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/panels_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/kernels/cpu/panels-inl.h"
#include "engine/kernels/cpu/panels.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/tensor/dtype.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

using tensor::DType;

constexpr int kPanel = 16;

// Tiles that fill the registers: 32 of AVX-512, 16 of the narrower targets. A tile of R rows and V vectors
// (of kLanes outputs each) needs 2 R V sums, 2 V weights, an input and a mask.
constexpr int kMaxRows = kVecs == 1 ? 12 : 6;
template <int R>
constexpr int MaxVecs() {
  if (kVecs == 1) {
    return R <= 2 ? 4 : R == 3 ? 3 : R <= 6 ? 2 : 1;
  }
  return R == 1 ? 4 : R == 2 ? 2 : 1;
}
// Panels whose results are finished together: whole tiles, and pairs for SwiGLU.
template <int R>
constexpr int UnitPanels() {
  constexpr int kPanels = (MaxVecs<R>() + kVecs - 1) / kVecs;
  return kPanels % 2 == 0 ? kPanels : 2 * kPanels;
}
constexpr int kMaxUnit = 6;

// Packed rows lie in half of a 48 KiB L1; the sums of a block of panels wait on the stack while the next
// inputs are packed; a block of panels stays in a 2 MiB L2 while all row tiles pass over it.
constexpr std::int64_t kPackedFloats = 6144;
constexpr std::int64_t kSavedPanels = 16;
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

// Weights are asked for this far ahead, across the pages at which the hardware's own prefetchers stop: 8 rows
// of 2048 x 2048 from memory took 1.3 ms without, 1.0 at 512, 0.8 at 2048.
constexpr std::int64_t kPrefetchBytes = 2048;

// One pair of inputs of a panel. `w` is where its first register lies, or register v of a panel at v *
// kVecBytes.
template <DType kType>
struct Pair;

template <>
struct Pair<DType::kBf16> {
  static constexpr std::int64_t kBytes = 64;
  static constexpr std::int64_t kVecBytes = 4 * kLanes;
  static HWY_INLINE void Load(const std::byte* w, F32Vec& even, F32Vec& odd) {
    const hn::RebindToUnsigned<F32> u32;
    const auto both = hn::LoadU(u32, reinterpret_cast<const std::uint32_t*>(w));
    even = hn::BitCast(F32(), hn::ShiftLeft<16>(both));
    odd = hn::BitCast(F32(), hn::And(both, hn::Set(u32, 0xffff0000U)));
  }
  static HWY_INLINE F32Vec LoadEven(const std::byte* w) {
    const hn::RebindToUnsigned<F32> u32;
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::LoadU(u32, reinterpret_cast<const std::uint32_t*>(w))));
  }
};

template <>
struct Pair<DType::kF16> {
  static constexpr std::int64_t kBytes = 64;
  static constexpr std::int64_t kVecBytes = 2 * kLanes;
  static HWY_INLINE F32Vec LoadEven(const std::byte* w) {
    const hn::Rebind<hwy::float16_t, F32> f16;
    return hn::PromoteTo(F32(), hn::LoadU(f16, reinterpret_cast<const hwy::float16_t*>(w)));
  }
  static HWY_INLINE void Load(const std::byte* w, F32Vec& even, F32Vec& odd) {
    even = LoadEven(w);
    odd = LoadEven(w + kBytes / 2);
  }
};

template <>
struct Pair<DType::kF32> {
  static constexpr std::int64_t kBytes = 128;
  static constexpr std::int64_t kVecBytes = 4 * kLanes;
  static HWY_INLINE F32Vec LoadEven(const std::byte* w) { return LoadF32(reinterpret_cast<const float*>(w)); }
  static HWY_INLINE void Load(const std::byte* w, F32Vec& even, F32Vec& odd) {
    even = LoadEven(w);
    odd = LoadEven(w + kBytes / 2);
  }
};

// A run of inputs of some panels.
struct Inputs {
  const float* x = nullptr;      // packed [count, R]
  const std::byte* w = nullptr;  // first panel, at the first of these inputs
  std::int64_t panel_bytes = 0;
  std::int64_t pairs = 0;
  bool lone_even = false;  // one more input after the pairs: the last of an odd K
  bool resume = false;     // sums go on from `saved`, not from 0
  bool last = false;       // the sums are complete: even + odd goes to `out`; otherwise they are saved
};

constexpr int kOutStride = kMaxUnit * kPanel;  // between rows of results

// Vectors [first, first + V) of the panels. saved: [V, 2, R, kLanes] floats; out: rows of V * kLanes results,
// kOutStride apart.
template <DType kType, int R, int V>
HWY_NOINLINE void Tile(const Inputs& in, int first, float* HWY_RESTRICT saved, float* HWY_RESTRICT out) {
  F32Vec even[R][V];
  F32Vec odd[R][V];
  COMOE_UNROLL
  for (int r = 0; r < R; ++r) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      even[r][v] = hn::Zero(F32());
      odd[r][v] = hn::Zero(F32());
    }
  }
  if (in.resume) {
    COMOE_UNROLL
    for (int r = 0; r < R; ++r) {
      COMOE_UNROLL
      for (int v = 0; v < V; ++v) {
        even[r][v] = LoadF32(saved + (2 * v * R + r) * kLanes);
        odd[r][v] = LoadF32(saved + ((2 * v + 1) * R + r) * kLanes);
      }
    }
  }
  const std::byte* w[V];
  COMOE_UNROLL
  for (int v = 0; v < V; ++v) {
    w[v] = in.w + (first + v) / kVecs * in.panel_bytes + (first + v) % kVecs * Pair<kType>::kVecBytes;
  }
  const float* HWY_RESTRICT x = in.x;
  const std::int64_t end = in.pairs * Pair<kType>::kBytes;
  // Panels are short: near the end of these, what comes kPrefetchBytes later is the start of the next ones.
  const std::int64_t turn = end - kPrefetchBytes;
  const std::int64_t to_next_tile = (V + kVecs - 1) / kVecs * in.panel_bytes - end;
  for (std::int64_t at = 0; at < end; at += Pair<kType>::kBytes) {
    const std::int64_t ahead = at < turn ? kPrefetchBytes : kPrefetchBytes + to_next_tile;
    F32Vec w_even[V];
    F32Vec w_odd[V];
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      hwy::Prefetch(w[v] + at + ahead);
      Pair<kType>::Load(w[v] + at, w_even[v], w_odd[v]);
    }
    COMOE_UNROLL
    for (int r = 0; r < R; ++r) {
      const F32Vec x_even = hn::Set(F32(), x[r]);
      const F32Vec x_odd = hn::Set(F32(), x[R + r]);
      COMOE_UNROLL
      for (int v = 0; v < V; ++v) {
        even[r][v] = hn::MulAdd(x_even, w_even[v], even[r][v]);
        odd[r][v] = hn::MulAdd(x_odd, w_odd[v], odd[r][v]);
      }
    }
    x += 2 * R;
  }
  if (in.lone_even) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      const F32Vec w_even = Pair<kType>::LoadEven(w[v] + end);
      COMOE_UNROLL
      for (int r = 0; r < R; ++r) {
        even[r][v] = hn::MulAdd(hn::Set(F32(), x[r]), w_even, even[r][v]);
      }
    }
  }
  COMOE_UNROLL
  for (int r = 0; r < R; ++r) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      if (in.last) {
        StoreF32(hn::Add(even[r][v], odd[r][v]), out + r * kOutStride + v * kLanes);
      } else {
        StoreF32(even[r][v], saved + (2 * v * R + r) * kLanes);
        StoreF32(odd[r][v], saved + ((2 * v + 1) * R + r) * kLanes);
      }
    }
  }
}

// Rows [first_row, first_row + R) of a job.
template <int R>
struct Rows {
  const float* row[R];

  Rows(const PanelJob& job, std::int64_t first_row) {
    for (int r = 0; r < R; ++r) {
      const std::int64_t at = first_row + r;
      row[r] = job.x + (job.row_ids == nullptr ? at : job.row_ids[at]) * job.x_stride;
    }
  }

  // packed[k - first][r] = row[r][k]
  void Pack(std::int64_t first, std::int64_t count, float* HWY_RESTRICT packed) const {
    constexpr int kQuads = HWY_TARGET == HWY_SCALAR ? 0 : R / 4 * 4;  // rows that go four at a time
    const std::int64_t whole = count / 4 * 4;
    for (std::int64_t k = 0; k < whole; k += 4) {
      COMOE_UNROLL
      for (int r = 0; r < kQuads; r += 4) {
        Turn4x4(row + r, first + k, packed + k * R + r);
      }
      COMOE_UNROLL
      for (int r = kQuads; r < R; ++r) {
        for (std::int64_t i = k; i < k + 4; ++i) {
          packed[i * R + r] = row[r][first + i];
        }
      }
    }
    for (std::int64_t k = whole; k < count; ++k) {
      for (int r = 0; r < R; ++r) {
        packed[k * R + r] = row[r][first + k];
      }
    }
  }

  // to[i * R + r] = from[r][k + i] for i and r below 4.
  static HWY_INLINE void Turn4x4(const float* const* from, std::int64_t k, float* HWY_RESTRICT to) {
#if HWY_TARGET != HWY_SCALAR
    const hn::CappedTag<float, 4> d;
    const hn::RepartitionToWide<hn::CappedTag<float, 4>> wide;
    const auto a = hn::LoadU(d, from[0] + k);
    const auto b = hn::LoadU(d, from[1] + k);
    const auto c = hn::LoadU(d, from[2] + k);
    const auto e = hn::LoadU(d, from[3] + k);
    const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(d, a, b));
    const auto ce_low = hn::BitCast(wide, hn::InterleaveLower(d, c, e));
    const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(d, a, b));
    const auto ce_high = hn::BitCast(wide, hn::InterleaveUpper(d, c, e));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, ab_low, ce_low)), d, to);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, ab_low, ce_low)), d, to + R);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, ab_high, ce_high)), d, to + 2 * R);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, ab_high, ce_high)), d, to + 3 * R);
#else
    static_cast<void>(from);
    static_cast<void>(k);
    static_cast<void>(to);
#endif
  }
};

// Adds the bias and stores `panels` panels of results, real outputs only.
void FinishPlain(const PanelJob& job, std::int64_t first_row, int rows, std::int64_t panel, int panels,
                 const float* results) {
  const std::int64_t first = panel * kPanel;
  const std::int64_t count = std::min<std::int64_t>(panels * kPanel, job.w.layout.n - first);
  const float* bias = job.bias == nullptr ? nullptr : job.bias + first;
  for (int r = 0; r < rows; ++r) {
    const float* from = results + r * kOutStride;
    float* to = job.y + (first_row + r) * job.y_stride + first;
    ForLanes(count, [&](auto d, std::int64_t i) HWY_ATTR {
      auto value = hn::LoadU(d, from + i);
      if (bias != nullptr) {
        value = hn::Add(value, hn::LoadU(d, bias + i));
      }
      hn::StoreU(value, d, to + i);
    });
  }
}

void FinishSwiGlu(const PanelJob& job, std::int64_t first_row, int rows, std::int64_t panel, int panels,
                  const float* results) {
  for (int r = 0; r < rows; ++r) {
    const float* from = results + r * kOutStride;
    float* to = job.y + (first_row + r) * job.y_stride + panel / 2 * kPanel;
    for (int pair = 0; pair < panels / 2; ++pair) {
      for (int v = 0; v < kVecs; ++v) {
        const float* gate = from + pair * 2 * kPanel + v * kLanes;
        StoreF32(hn::Mul(Silu(F32(), LoadF32(gate)), LoadF32(gate + kPanel)),
                 to + pair * kPanel + v * kLanes);
      }
    }
  }
}

// Vectors [first, last) of the panels, in tiles as wide as R allows.
template <DType kType, int R, int V = MaxVecs<R>()>
HWY_INLINE void RunTiles(const Inputs& in, int first, int last, float* saved, float* out) {
  for (; last - first >= V; first += V) {
    Tile<kType, R, V>(in, first, saved + first * 2 * R * kLanes, out + first * kLanes);
  }
  if constexpr (V > 1) {
    if (first < last) {
      RunTiles<kType, R, V - 1>(in, first, last, saved, out);
    }
  }
}

// R rows times `num_panels` panels.
template <DType kType, int R>
HWY_NOINLINE void RunRows(const PanelJob& job, std::int64_t first_row, std::int64_t first_panel,
                          std::int64_t num_panels) {
  constexpr int kUnit = UnitPanels<R>();
  static_assert(kUnit <= kMaxUnit);
  HWY_ALIGN float packed[R == 1 ? 1 : kPackedFloats];
  HWY_ALIGN float saved[kSavedPanels * 2 * R * kPanel];
  HWY_ALIGN float out[R * kOutStride];
  const Rows<R> rows(job, first_row);
  const std::int64_t k = job.w.layout.k;
  // Runs of inputs: even lengths, and about equal.
  const std::int64_t runs = R == 1 ? 1 : (k * R + kPackedFloats - 1) / kPackedFloats;
  const std::int64_t run = runs == 1 ? k : std::min(kPackedFloats / R / 2 * 2, (k / runs + 3) / 2 * 2);
  Inputs in;
  in.panel_bytes = static_cast<std::int64_t>(job.w.layout.panel_bytes());
  const std::int64_t block = run < k ? kSavedPanels : num_panels;
  for (std::int64_t b = 0; b < num_panels; b += block) {
    const std::int64_t block_end = std::min(b + block, num_panels);
    for (std::int64_t first = 0; first < k; first += run) {
      const std::int64_t count = std::min(run, k - first);
      in.resume = first > 0;
      in.last = first + count == k;
      in.pairs = count / 2;
      in.lone_even = count % 2 != 0;
      in.x = rows.row[0];
      if constexpr (R > 1) {
        if (b == 0 || run < k) {
          rows.Pack(first, count, packed);
        }
        in.x = packed;
      }
      for (std::int64_t p = b; p < block_end; p += kUnit) {
        const int panels = static_cast<int>(std::min<std::int64_t>(kUnit, block_end - p));
        in.w = job.w.panel(first_panel + p) + first / 2 * Pair<kType>::kBytes;
        RunTiles<kType, R>(in, 0, panels * kVecs, run < k ? saved + (p - b) * 2 * R * kPanel : saved, out);
        if (in.last) {
          (job.swiglu ? FinishSwiGlu : FinishPlain)(job, first_row, R, first_panel + p, panels, out);
        }
      }
    }
  }
}

using RunRowsFn = void (*)(const PanelJob&, std::int64_t, std::int64_t, std::int64_t);

template <DType kType, int... R>
RunRowsFn PickRows(int rows, std::integer_sequence<int, R...>) {
  static constexpr RunRowsFn kTable[] = {&RunRows<kType, R + 1>...};
  return kTable[rows - 1];
}

RunRowsFn PickRows(DType dtype, int rows) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxRows>();
  switch (dtype) {
    case DType::kBf16:
      return PickRows<DType::kBf16>(rows, kRows);
    case DType::kF16:
      return PickRows<DType::kF16>(rows, kRows);
    case DType::kF32:
      break;
  }
  return PickRows<DType::kF32>(rows, kRows);
}

}  // namespace

void RunPanels(const PanelJob& job) {
  if (job.num_rows == 0) {
    return;
  }
  const std::int64_t tiles = (job.num_rows + kMaxRows - 1) / kMaxRows;
  std::int64_t block = job.num_panels;
  if (tiles > 1) {
    const auto panel_bytes = static_cast<std::int64_t>(job.w.layout.panel_bytes());
    block = std::clamp<std::int64_t>(kBlockBytes / panel_bytes / 2 * 2, 2, std::max<std::int64_t>(block, 2));
  }
  for (std::int64_t p = 0; p < job.num_panels; p += block) {
    const std::int64_t panels = std::min(block, job.num_panels - p);
    // Tiles differ by one row at most: 13 rows are 7 and 6, not 12 and 1.
    std::int64_t row = 0;
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t end = job.num_rows * (t + 1) / tiles;
      PickRows(job.w.layout.dtype, static_cast<int>(end - row))(job, row, job.first_panel + p, panels);
      row = end;
    }
  }
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
