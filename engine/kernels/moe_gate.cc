#include "engine/kernels/moe_gate.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status MoeGate(const KernelTable& table, const MoeGateArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "MoeGate";
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "logits", args.logits, args.logits.rows, args.logits.cols));
  if (args.experts_per_row < 1 || args.experts_per_row > args.logits.cols) {
    return BadArgument(kOp, absl::StrCat(args.experts_per_row, " experts a row of ", args.logits.cols));
  }
  const auto chosen = static_cast<std::size_t>(args.logits.rows * args.experts_per_row);
  if (args.experts.size() != chosen || args.weights.size() != chosen) {
    return BadArgument(kOp, absl::StrCat("room for ", args.experts.size(), " experts and ",
                                         args.weights.size(), " weights, not ", chosen));
  }
  return table.moe_gate(args, stream);
}

}  // namespace comoe::kernels
