#include "engine/kernels/rope.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status Rope(const KernelTable& table, const RopeArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "Rope";
  if (args.heads < 1 || args.x.cols % (2 * args.heads) != 0) {
    return BadArgument(kOp,
                       absl::StrCat(args.x.cols, " columns are not ", args.heads, " heads of an even size"));
  }
  const std::int64_t half = args.x.cols / args.heads / 2;
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.x.rows, args.x.cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "cos", args.cos, args.x.rows, half));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "sin", args.sin, args.x.rows, half));
  return table.rope(args, stream);
}

}  // namespace comoe::kernels
