#include "engine/kernels/heads.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/rms_norm.h"
#include "engine/kernels/rope.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status Heads(const KernelTable& table, const HeadsArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "Heads";
  const std::int64_t all = args.heads + args.kv_heads;
  if (args.heads < 1 || args.kv_heads < 1 || args.x.cols % (2 * all) != 0) {
    return BadArgument(kOp, absl::StrCat(args.x.cols, " columns are not ", args.heads, " and ", args.kv_heads,
                                         " heads of an even size"));
  }
  const std::int64_t dim = args.x.cols / all;
  for (const absl::Span<const float> weight : {args.query_norm, args.key_norm}) {
    if (!weight.empty() && static_cast<std::int64_t>(weight.size()) != dim) {
      return BadArgument(kOp, absl::StrCat("a norm of ", weight.size(), " for heads of ", dim));
    }
  }
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.x.rows, args.x.cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "cos", args.cos, args.x.rows, dim / 2));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "sin", args.sin, args.x.rows, dim / 2));
  if (table.heads != nullptr) {
    return table.heads(args, stream);
  }
  const tensor::TensorView queries = args.x.Cols(0, args.heads * dim);
  const tensor::TensorView keys = args.x.Cols(args.heads * dim, args.kv_heads * dim);
  if (!args.query_norm.empty()) {
    COMOE_RETURN_IF_ERROR(
        RmsNorm(table, {queries, args.query_norm, args.epsilon, args.heads, queries}, stream));
  }
  if (!args.key_norm.empty()) {
    COMOE_RETURN_IF_ERROR(RmsNorm(table, {keys, args.key_norm, args.epsilon, args.kv_heads, keys}, stream));
  }
  COMOE_RETURN_IF_ERROR(Rope(table, {queries, args.heads, args.cos, args.sin}, stream));
  return Rope(table, {keys, args.kv_heads, args.cos, args.sin}, stream);
}

}  // namespace comoe::kernels
