#include "engine/kernels/top_logits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status TopLogits(const KernelTable& table, const TopLogitsArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "TopLogits";
  if (table.top_logits == nullptr) {
    return absl::UnimplementedError(absl::StrCat(kOp, ": the kernels ", table.name, " do not have it"));
  }
  const std::int64_t rows = args.logits.rows;
  const std::int64_t vocab = args.logits.cols;
  if (args.k < 1 || args.k > std::min(vocab, kMostTopLogits) || vocab > kMostTopLogitsVocab) {
    return BadArgument(kOp, absl::StrCat("the ", args.k, " highest of ", vocab, " logits"));
  }
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "logits", args.logits, rows, vocab));
  const auto chosen = static_cast<std::size_t>(rows * args.k);
  if (args.ids.size() != chosen || args.values.size() != chosen ||
      args.scratch.size() < TopLogitsScratchBytes(rows, args.k)) {
    return BadArgument(
        kOp, absl::StrCat("room for ", args.ids.size(), " ids and ", args.values.size(), " values, not ",
                          chosen, ", and ", args.scratch.size(), " bytes between kernels"));
  }
  return rows == 0 ? absl::OkStatus() : table.top_logits(args, stream);
}

}  // namespace comoe::kernels
