#include "engine/kernels/rms_norm.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/add.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status RmsNorm(const KernelTable& table, const RmsNormArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "RmsNorm";
  if (args.groups < 1 || args.weight.empty()) {
    return BadArgument(kOp, absl::StrCat(args.groups, " groups of ", args.weight.size()));
  }
  const std::int64_t cols = args.groups * static_cast<std::int64_t>(args.weight.size());
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.x.rows, cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, args.x.rows, cols));
  if (args.host_y.data != nullptr) {
    COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "host_y", args.host_y, args.x.rows, cols));
    if (!table.reaches_host) {
      return BadArgument(kOp, absl::StrCat(table.name, " kernels do not write to host memory"));
    }
  }
  if (args.add.data == nullptr) {
    return table.rms_norm(args, stream);
  }
  if (args.groups != 1) {
    return BadArgument(kOp, absl::StrCat("an addition to ", args.groups, " groups"));
  }
  if (table.rms_norm_adds) {
    COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "add", args.add, args.x.rows, cols));
    return table.rms_norm(args, stream);
  }
  COMOE_RETURN_IF_ERROR(Add(table, {args.add, args.x}, stream));
  RmsNormArgs added = args;
  added.add = {};
  return table.rms_norm(added, stream);
}

}  // namespace comoe::kernels
