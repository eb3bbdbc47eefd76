#include "cli/json_file.h"

#include "absl/strings/str_cat.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path) {
  constexpr std::uint64_t kLimitBytes = std::uint64_t{256} << 20;
  COMOE_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kLimitBytes));
  nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not valid JSON"));
  }
  return document;
}

absl::StatusOr<std::vector<base::TokenId>> TokenIds(const nlohmann::json& value, std::int32_t vocab_size,
                                                    const std::string& where) {
  if (!value.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " is not an array of token ids"));
  }
  std::vector<base::TokenId> ids;
  for (const nlohmann::json& item : value) {
    if (!item.is_number_integer() || item < 0 || item >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(where, "[", ids.size(), "] is ", item.dump(),
                                                     ", not a token id in [0, ", vocab_size, ")"));
    }
    ids.push_back(item.get<base::TokenId>());
  }
  return ids;
}

}  // namespace comoe::cli
