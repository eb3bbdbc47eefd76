#include "engine/kernels/embed.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status Embed(const KernelTable& table, const EmbedArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "Embed";
  COMOE_RETURN_IF_ERROR(CheckWeight(kOp, "table", args.table));
  COMOE_RETURN_IF_ERROR(
      CheckMatrix(kOp, "out", args.out, static_cast<std::int64_t>(args.ids.size()), args.table.layout.k));
  for (const base::TokenId id : args.ids) {
    if (id < 0 || id >= args.table.layout.n) {
      return BadArgument(kOp, absl::StrCat("token ", id, " is not one of ", args.table.layout.n));
    }
  }
  return table.embed(args, stream);
}

}  // namespace comoe::kernels
