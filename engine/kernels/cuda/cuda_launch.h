// What host code may start on a CUDA device: plain argument structs and one table of launch functions,
// without a CUDA type, so that it can cross the plugin's boundary (engine/device/cuda/plugin_api.h).
//
// Every launch checks its arguments' sizes, queues its kernels on `stream` (a cudaStream_t) and returns a
// cudaError_t as int: 0 is success, 1 (cudaErrorInvalidValue) sizes that are not supported. None allocates,
// synchronises or keeps anything; all may be captured in a graph. Thread-safe. Pointers are device addresses
// (device memory, or pinned host memory mapped into the device where it says so) and outlive the work queued.
//
// Letters as in engine/kernels/ops.h: T rows, D hidden, F intermediate, E experts, K experts a row uses, H
// query heads, G key and value heads, P head dim, V vocabulary. Activations are float32, row-major, with a
// row stride in elements. Strides that are multiples of 4 and pointers aligned to 16 bytes are fast; others
// are right, except where it says that they are required.
//
// A row's result never depends on what the other rows hold. Where it depends on how many there are, because
// another kernel takes over, the struct says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace comoe::kernels {

// Values of tensor::DType.
enum class CudaDType : std::int32_t { kF32 = 0, kBf16 = 1, kF16 = 2 };

// How products of activations with BF16 weights are made; sums are float32 either way.
enum class CudaPrecision : std::int32_t {
  kExact = 0,  // activations as three BF16 terms, which hold all 24 bits of a float32
  kBf16 = 1    // activations rounded to BF16
};

// out[t, :] = table[ids[t], :].
struct CudaEmbedArgs {
  const std::int32_t* ids = nullptr;  // [T] int32, device or mapped
  const void* table = nullptr;        // [V, D] dtype, row-major, rows adjacent
  CudaDType dtype = CudaDType::kBf16;
  float* out = nullptr;  // [T, D]
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;  // T
  std::int64_t cols = 0;  // D
};

// For each row and each of `groups` parts of it: y = s / sqrt(mean(s^2) + epsilon) * weight, with s = x, or
// x + add where `add` is given; then s is stored to `sum` too (which may be x: the residual stream). y may be
// x. The order of a sum depends on `width` alone.
struct CudaRmsNormArgs {
  const float* x = nullptr;  // [T, groups * width]
  std::int64_t x_stride = 0;
  const float* add = nullptr;  // as x, or nullptr; only with groups = 1
  std::int64_t add_stride = 0;
  float* sum = nullptr;  // as x; only with `add`
  std::int64_t sum_stride = 0;
  const float* weight = nullptr;  // [width]
  float* y = nullptr;             // as x
  std::int64_t y_stride = 0;
  float* mapped_y = nullptr;  // as y, or nullptr: a second place for it, mapped; only with groups = 1
  std::int64_t mapped_y_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t groups = 1;
  float epsilon = 0;
};

// In place, for each of `heads` heads of a row: RMS norm where there is a weight, then the rotary embedding
// (halves convention) where there are tables. The first `first_heads` heads use `weight`, the others
// `second_weight`: queries and keys that lie side by side take one launch.
struct CudaHeadsArgs {
  float* x = nullptr;  // [T, heads * P]
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t first_heads = 0;
  std::int64_t head_dim = 0;             // P, even, at most 512
  const float* weight = nullptr;         // [P] or nullptr: no norm
  const float* second_weight = nullptr;  // [P] or nullptr: no norm
  float epsilon = 0;
  const float* cos = nullptr;  // [T, P/2] or nullptr: no rotation
  const float* sin = nullptr;  // [T, P/2]
  std::int64_t cos_stride = 0;
  std::int64_t sin_stride = 0;
};

// y += x.
struct CudaAddArgs {
  const float* x = nullptr;  // [T, D]
  std::int64_t x_stride = 0;
  float* y = nullptr;  // [T, D]
  std::int64_t y_stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// x = min(max(x, -limit), limit); NaN stays NaN.
struct CudaClampArgs {
  float* x = nullptr;  // [T, D]
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float limit = 0;
};

// y[t, n] = sum_k x[t, k] w[n, k] + bias[n]. BF16 weights go to tensor cores; F16 and F32 weights are
// multiplied in float32 whatever the precision, by a plain kernel. The order of a sum is one up to
// kCudaFewRows rows and another above, without cuBLAS one up to 64 and (compute capability 9.0) another
// above; within each, a row's result does not depend on T.
struct CudaMatMulArgs {
  const float* x = nullptr;  // [T, K]
  std::int64_t x_stride = 0;
  const void* w = nullptr;  // [N, K] dtype, row-major, rows adjacent
  CudaDType dtype = CudaDType::kBf16;
  const float* bias = nullptr;  // [N] or nullptr
  float* y = nullptr;           // [T, N]
  std::int64_t y_stride = 0;
  std::int64_t rows = 0;  // T
  std::int64_t n = 0;
  std::int64_t k = 0;
  CudaPrecision precision = CudaPrecision::kExact;
  // CudaMatMulWorkspaceBytes(), aligned to 256; only read above kCudaFewRows rows.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  // From blas_create, or nullptr: our own tiles for any number of rows. Up to 64 rows they are taken anyhow.
  void* blas = nullptr;
};

// One span of rows of a step: rows [first_row, + num_rows) at positions start_position, +1, ... of a sequence
// whose KV block i is blocks[first_block + i].
struct CudaSpan {
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
  std::int32_t start_position = 0;
  std::int32_t first_block = 0;
};

// The KV cache of a layer (tensor/kv_layout.h) and which blocks belong to whom.
struct CudaKv {
  void* data = nullptr;                  // aligned to 256
  CudaDType dtype = CudaDType::kF32;     // or kF16
  std::int64_t kv_heads = 0;             // G
  std::int64_t head_dim = 0;             // P
  const CudaSpan* spans = nullptr;       // [num_spans], device or mapped
  const std::int32_t* blocks = nullptr;  // device or mapped
  std::int64_t num_spans = 0;
  std::int64_t max_span_rows = 0;  // of all spans' num_rows, or a bound
};

// Stores the rows' keys and values, as AppendKv of paged_attention.h.
struct CudaAppendKvArgs {
  const float* keys = nullptr;  // [T, G * P]
  std::int64_t keys_stride = 0;
  const float* values = nullptr;  // [T, G * P]
  std::int64_t values_stride = 0;
  CudaKv kv;
};

// Attention as in paged_attention.h; a value that counts and is not finite makes its row NaN in its dimension
// at least. Two launches with their own order of sums: `attention_decode` cuts a row's context into pieces,
// by its own position alone, and `attention_prefill` takes tiles of rows; a row's result in either depends
// neither on other rows nor on how its prompt was cut into spans.
//
// F16 keys and values, P 64 or 128: tensor cores, queries and weights as one (kBf16) or two (kExact) binary16
// terms after scaling by a power of two. F32: decode multiplies in float32; prefill as one or three BF16
// terms of either factor. Other P up to 512: a plain kernel in float32.
struct CudaAttentionArgs {
  const float* queries = nullptr;  // [T, H * P]
  std::int64_t queries_stride = 0;
  CudaKv kv;
  std::int64_t heads = 0;   // H, a multiple of G
  std::int64_t window = 0;  // positions; 0: all
  float scale = 0;
  float* out = nullptr;  // [T, H * P]
  std::int64_t out_stride = 0;
  CudaPrecision precision = CudaPrecision::kExact;
  // Decode: no position of a row is at or beyond this (a bound; sizes the launch).
  std::int64_t max_context = 0;
  void* workspace = nullptr;  // decode: CudaAttentionWorkspaceBytes(), aligned to 256
  std::size_t workspace_bytes = 0;
};

// As MoeGate. Results go to device memory and, where given, to mapped memory at the same time.
struct CudaGateArgs {
  const float* logits = nullptr;  // [T, E]
  std::int64_t logits_stride = 0;
  std::int64_t rows = 0;             // T
  std::int64_t num_experts = 0;      // E, at most 1024
  std::int64_t experts_per_row = 0;  // K
  bool normalize = false;
  std::int32_t* experts = nullptr;         // [T, K] int32, device, or nullptr
  float* weights = nullptr;                // [T, K] float32, device, or nullptr when mapped_weights is not
  std::int32_t* mapped_experts = nullptr;  // the same, mapped, or nullptr
  float* mapped_weights = nullptr;
};

// The rows of one expert among rows grouped by expert: [first_row, + num_rows).
struct CudaExpertWork {
  const void* blob = nullptr;  // device
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;  // 0: nothing to do
};

// Groups the (row, choice) pairs of a layer by expert, in the order of experts, rows within one ascending.
// Pairs whose expert has no slot are left out: their source is -1.
struct CudaDispatchArgs {
  const std::int32_t* experts = nullptr;  // [T, K] int32, device
  std::int64_t rows = 0;                  // T
  std::int64_t experts_per_row = 0;       // K
  std::int64_t num_experts = 0;           // E, at most 1024
  const std::uint64_t* slots = nullptr;   // [E] device addresses of blobs, 0: absent; device or mapped
  CudaExpertWork* work = nullptr;         // [min(E, T * K)] out, the unused ones with num_rows = 0
  std::int32_t* grouped = nullptr;        // [T * K] int32 out: the row of each grouped row; unused ones -1
  std::int32_t* source = nullptr;         // [T * K] int32 out: the grouped row of each pair, or -1
  std::int32_t* num_work = nullptr;       // [1] int32 out, or nullptr
};

// y[r] = down(silu(gate(x)) * up(x)) for the rows of each work. Experts with at most `few_rows` rows are
// read once at the speed of memory, others go through tiles; the order of sums differs between the two, and
// on compute capability 9.0 again for experts with more than 64 rows; it depends on nothing else.
struct CudaExpertFfnArgs {
  const float* x = nullptr;  // [T, D]
  std::int64_t x_stride = 0;
  std::int64_t x_rows = 0;  // T, or 0: unknown; lets rows be rounded once for all their experts
  // [R] int32: the row of x of each grouped row, -1: none; device or mapped.
  const std::int32_t* grouped = nullptr;
  const CudaExpertWork* work = nullptr;  // [num_work], device or mapped
  std::int64_t num_work = 0;
  std::int64_t max_rows = 0;    // of one work: a bound
  std::int64_t total_rows = 0;  // R: a bound
  // The blob's layout (tensor::BlobLayout).
  CudaDType dtype = CudaDType::kBf16;
  std::int64_t hidden = 0;        // D
  std::int64_t intermediate = 0;  // F
  std::int64_t gate_up_offset = 0;
  std::int64_t down_offset = 0;
  float* scratch = nullptr;  // [R, F padded to 16]: silu(gate) * up of experts with few rows
  std::int64_t scratch_stride = 0;
  float* y = nullptr;  // [R, D]
  std::int64_t y_stride = 0;
  CudaPrecision precision = CudaPrecision::kExact;
  std::int64_t few_rows = 0;  // at most kCudaFewRows; 0: kCudaFewRows
  // CudaExpertFfnWorkspaceBytes(), aligned to 256; only where max_rows > few_rows.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

// As MoeCombine; a pair whose source is negative adds nothing.
struct CudaCombineArgs {
  const float* y = nullptr;  // [Y, D]
  std::int64_t y_stride = 0;
  const float* mapped_y = nullptr;  // [*, D] mapped, or nullptr: then every source is a row of y
  std::int64_t y_rows = 0;          // Y; a source from here on is a row of mapped_y
  std::int64_t mapped_y_stride = 0;
  const std::int32_t* source = nullptr;  // [T, K] int32; device or mapped
  const float* weights = nullptr;        // [T, K]; device or mapped
  std::int64_t experts_per_row = 0;      // K, may be 0
  const float* shared = nullptr;         // [T, D] or nullptr
  std::int64_t shared_stride = 0;
  const float* shared_gate = nullptr;  // [T, 1] or nullptr
  std::int64_t shared_gate_stride = 0;
  float* out = nullptr;  // [T, D]
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// The k highest logits of each row, highest first, the lower id first among equals, NaN above everything.
// k = 1 is the greedy choice. Results may go to mapped memory.
struct CudaTopKArgs {
  const float* logits = nullptr;  // [T, V]
  std::int64_t logits_stride = 0;
  std::int64_t rows = 0;
  std::int64_t vocab = 0;       // V, at most kCudaMaxTopKVocab
  std::int64_t k = 1;           // at most kCudaMaxTopK and at most V
  std::int32_t* ids = nullptr;  // [T, k] int32
  float* values = nullptr;      // [T, k], or nullptr
  void* workspace = nullptr;    // CudaTopKWorkspaceBytes(), aligned to 256
  std::size_t workspace_bytes = 0;
};

// Rows up to which products read the weights straight into registers, without tiles: as many as one
// tensor-core instruction takes.
inline constexpr std::int64_t kCudaFewRows = 8;
inline constexpr std::int64_t kCudaMaxTopK = 64;
// Parts of a row of logits that are searched side by side.
inline constexpr std::int64_t kCudaTopKParts = 32;
inline constexpr std::int64_t kCudaMaxTopKVocab = 262144;
// Columns that rounded activations are padded to.
inline constexpr std::int64_t kCudaTermColumns = 64;

constexpr std::int64_t CudaTerms(CudaPrecision precision) {
  return precision == CudaPrecision::kExact ? 3 : 1;
}
constexpr std::size_t CudaTermBytes(std::int64_t rows, std::int64_t cols, CudaPrecision precision) {
  const std::int64_t padded = (cols + kCudaTermColumns - 1) / kCudaTermColumns * kCudaTermColumns;
  return static_cast<std::size_t>(rows * CudaTerms(precision) * padded) * 2;
}
constexpr std::size_t CudaMatMulWorkspaceBytes(std::int64_t rows, std::int64_t k, CudaPrecision precision) {
  return CudaTermBytes(rows, k, precision);
}
constexpr std::size_t CudaExpertFfnWorkspaceBytes(std::int64_t rows, std::int64_t hidden,
                                                  std::int64_t intermediate, CudaPrecision precision) {
  return CudaTermBytes(rows, hidden, precision) + CudaTermBytes(rows, intermediate, precision);
}

// Tokens of a piece of a row's context of `length` positions, in attention_decode: a multiple of 64. Four
// pieces or fewer up to 1,024 positions: a launch has as many blocks a row as its longest context could have
// pieces, and those that find nothing to do cost 5 % where shorter contexts were cut into up to six.
constexpr std::int64_t CudaDecodePiece(std::int64_t length) {
  return length <= 256 ? 64 : length <= 512 ? 128 : length <= 16384 ? 256 : 512;
}
// Pieces that a context of up to `length` positions is cut into, at most. It may begin up to `offset`
// positions after the first of a block of 16: anywhere with a window, at 0 without.
constexpr std::int64_t CudaDecodePieces(std::int64_t length, std::int64_t offset = 15) {
  std::int64_t most = 1;
  for (const std::int64_t bound : {std::int64_t{256}, std::int64_t{512}, std::int64_t{16384}, length}) {
    const std::int64_t n = bound < length ? bound : length;
    const std::int64_t piece = CudaDecodePiece(n);
    const std::int64_t pieces = (n + offset + piece - 1) / piece;
    most = pieces > most ? pieces : most;
  }
  return most;
}
// `rows`: num_spans * max_span_rows. `length`: the longest context that counts (max_context, or the window).
constexpr std::size_t CudaAttentionWorkspaceBytes(std::int64_t rows, std::int64_t heads,
                                                  std::int64_t head_dim, std::int64_t length) {
  return static_cast<std::size_t>(rows * heads * CudaDecodePieces(length) * (head_dim + 4)) * 4;
}
constexpr std::size_t CudaTopKWorkspaceBytes(std::int64_t rows, std::int64_t k) {
  return static_cast<std::size_t>(rows * kCudaTopKParts * k) * 8;
}

// `abi` changes whenever a struct above or this table does.
inline constexpr std::uint32_t kCudaLaunchAbi = 4;
struct CudaLaunchTable {
  std::uint32_t abi = kCudaLaunchAbi;
  std::uint32_t bytes = sizeof(CudaLaunchTable);
  int (*embed)(const CudaEmbedArgs&, void* stream) = nullptr;
  int (*rms_norm)(const CudaRmsNormArgs&, void* stream) = nullptr;
  int (*heads)(const CudaHeadsArgs&, void* stream) = nullptr;
  int (*add)(const CudaAddArgs&, void* stream) = nullptr;
  int (*clamp)(const CudaClampArgs&, void* stream) = nullptr;
  int (*matmul)(const CudaMatMulArgs&, void* stream) = nullptr;
  int (*append_kv)(const CudaAppendKvArgs&, void* stream) = nullptr;
  int (*attention_decode)(const CudaAttentionArgs&, void* stream) = nullptr;
  int (*attention_prefill)(const CudaAttentionArgs&, void* stream) = nullptr;
  int (*gate)(const CudaGateArgs&, void* stream) = nullptr;
  int (*dispatch)(const CudaDispatchArgs&, void* stream) = nullptr;
  int (*expert_ffn)(const CudaExpertFfnArgs&, void* stream) = nullptr;
  int (*combine)(const CudaCombineArgs&, void* stream) = nullptr;
  int (*top_k)(const CudaTopKArgs&, void* stream) = nullptr;
  // cuBLAS, found with dlopen: `*blas` is a handle for one stream's use, or nullptr with a result other than
  // 0 where the library is missing. It allocates: not within a step.
  int (*blas_create)(void** blas) = nullptr;
  void (*blas_destroy)(void* blas) = nullptr;
};

// Of the plugin; the table is constant and lives as long as the plugin is loaded.
const CudaLaunchTable& CudaLaunches();

}  // namespace comoe::kernels
