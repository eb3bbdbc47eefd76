#include "engine/kernels/moe_combine.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status MoeCombine(const KernelTable& table, const MoeCombineArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "MoeCombine";
  const std::int64_t rows = args.out.rows;
  const std::int64_t cols = args.out.cols;
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "out", args.out, rows, cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, args.y.rows, cols));
  const std::size_t terms = args.source.size();
  if (args.weights.size() != terms ||
      (rows == 0 ? terms != 0 : terms % static_cast<std::size_t>(rows) != 0)) {
    return BadArgument(
        kOp, absl::StrCat(terms, " sources and ", args.weights.size(), " weights for ", rows, " rows"));
  }
  std::int64_t sources = args.y.rows;
  if (args.host_y.data != nullptr) {
    COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "host_y", args.host_y, args.host_y.rows, cols));
    if (!table.reaches_host) {
      return BadArgument(kOp, absl::StrCat(table.name, " kernels do not read host memory"));
    }
    sources += args.host_y.rows;
  }
  for (const std::int32_t source : args.source) {
    if (source < 0 || source >= sources) {
      return BadArgument(kOp, absl::StrCat("row ", source, " of ", sources));
    }
  }
  if (args.shared.data != nullptr) {
    COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "shared", args.shared, rows, cols));
  }
  if (args.shared_gate.data != nullptr) {
    COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "shared_gate", args.shared_gate, rows, 1));
  }
  return table.moe_combine(args, stream);
}

}  // namespace comoe::kernels
