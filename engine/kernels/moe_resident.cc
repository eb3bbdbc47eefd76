#include "engine/kernels/moe_resident.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status MoeResident(const KernelTable& table, const MoeResidentArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "MoeResident";
  if (!HasMoeResident(table)) {
    return absl::UnimplementedError(absl::StrCat(kOp, ": the kernels ", table.name, " do not have it"));
  }
  if (args.layout == nullptr || args.logits.cols != static_cast<std::int64_t>(args.blobs.size()) ||
      args.experts_per_row < 1 || args.experts_per_row > args.logits.cols) {
    return BadArgument(kOp, absl::StrCat(args.experts_per_row, " of ", args.logits.cols,
                                         " experts a row, and ", args.blobs.size(), " blobs"));
  }
  const std::int64_t rows = args.x.rows;
  const std::int64_t hidden = args.layout->hidden;
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, rows, hidden));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "logits", args.logits, rows, args.logits.cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, rows * args.experts_per_row, hidden));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "scratch", args.scratch, args.y.rows, args.layout->gate_up.n / 2));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "out", args.out, rows, hidden));
  if (args.shared.data != nullptr) {
    COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "shared", args.shared, rows, hidden));
  }
  if (args.shared_gate.data != nullptr) {
    COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "shared_gate", args.shared_gate, rows, 1));
  }
  const auto chosen = static_cast<std::size_t>(args.y.rows);
  if (args.experts.size() != chosen || args.weights.size() != chosen) {
    return BadArgument(kOp, absl::StrCat("room for ", args.experts.size(), " experts and ",
                                         args.weights.size(), " weights, not ", chosen));
  }
  return rows == 0 ? absl::OkStatus() : table.moe_resident(args, stream);
}

}  // namespace comoe::kernels
