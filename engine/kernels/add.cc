#include "engine/kernels/add.h"

#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status Add(const KernelTable& table, const AddArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "Add";
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, args.y.rows, args.y.cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.y.rows, args.y.cols));
  return table.add(args, stream);
}

}  // namespace comoe::kernels
