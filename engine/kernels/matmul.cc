#include "engine/kernels/matmul.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status MatMul(const KernelTable& table, const MatMulArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "MatMul";
  COMOE_RETURN_IF_ERROR(CheckWeight(kOp, "w", args.w));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.x.rows, args.w.layout.k));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, args.x.rows, args.w.layout.n));
  if (!args.bias.empty() && static_cast<std::int64_t>(args.bias.size()) != args.w.layout.n) {
    return BadArgument(kOp, absl::StrCat("bias has ", args.bias.size(), " values, not ", args.w.layout.n));
  }
  return table.matmul(args, stream);
}

}  // namespace comoe::kernels
