#include "engine/kernels/swiglu.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::kernels {

absl::Status SwiGlu(const KernelTable& table, const SwiGluArgs& args, device::Stream& stream) {
  constexpr char kOp[] = "SwiGlu";
  if (args.y.cols % tensor::kPanelOutputs != 0) {
    return BadArgument(kOp, absl::StrCat("y has ", args.y.cols, " columns, which are not whole panels"));
  }
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, args.y.rows, args.y.cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "gate_up", args.gate_up, args.y.rows, 2 * args.y.cols));
  return table.swiglu(args, stream);
}

}  // namespace comoe::kernels
