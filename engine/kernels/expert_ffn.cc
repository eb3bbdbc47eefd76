#include "engine/kernels/expert_ffn.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {
namespace {

constexpr absl::string_view kOp = "ExpertFfn";

absl::Status CheckExpert(const ExpertFfnArgs& args, const tensor::BlobLayout& layout,
                         const ExpertRows& work) {
  if (work.expert.layout == nullptr || work.expert.data == nullptr) {
    return BadArgument(kOp, "an expert has no blob");
  }
  if (work.expert.layout != &layout && *work.expert.layout != layout) {
    return BadArgument(kOp, "the experts' layouts differ");
  }
  COMOE_RETURN_IF_ERROR(CheckWeight(kOp, "gate_up", work.expert.gate_up()));
  COMOE_RETURN_IF_ERROR(CheckWeight(kOp, "down", work.expert.down()));
  const auto rows = static_cast<std::int64_t>(work.rows.size());
  if (work.first_out < 0 || work.first_out > args.y.rows - rows) {
    return BadArgument(kOp, absl::StrCat(rows, " rows from row ", work.first_out, " of y's ", args.y.rows));
  }
  for (const std::int32_t row : work.rows) {
    if (row < 0 || row >= args.x.rows) {
      return BadArgument(kOp, absl::StrCat("row ", row, " of x's ", args.x.rows));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpertFfn(const KernelTable& table, const ExpertFfnArgs& args, device::Stream& stream) {
  if (args.experts.empty()) {
    return absl::OkStatus();
  }
  if (args.experts[0].expert.layout == nullptr) {
    return BadArgument(kOp, "an expert has no blob");
  }
  const tensor::BlobLayout& layout = *args.experts[0].expert.layout;
  const auto padded = static_cast<std::int64_t>(
      base::AlignUp(static_cast<std::uint64_t>(layout.intermediate), tensor::kPanelOutputs));
  if (layout.gate_up.k != layout.hidden || layout.down.n != layout.hidden || layout.gate_up.n != 2 * padded ||
      layout.down.k != layout.intermediate) {
    return BadArgument(kOp,
                       absl::StrCat("gate_up [", layout.gate_up.n, ", ", layout.gate_up.k, "] and down [",
                                    layout.down.n, ", ", layout.down.k, "] do not fit together"));
  }
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.x.rows, layout.hidden));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, args.y.rows, layout.hidden));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "scratch", args.scratch, args.y.rows, layout.gate_up.n / 2));
  for (const ExpertRows& work : args.experts) {
    COMOE_RETURN_IF_ERROR(CheckExpert(args, layout, work));
  }
  return table.expert_ffn(args, stream);
}

}  // namespace comoe::kernels
