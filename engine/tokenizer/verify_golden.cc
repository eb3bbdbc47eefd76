#include "engine/tokenizer/verify_golden.h"

#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/json_fields.h"

namespace comoe::tokenizer {
namespace {

constexpr std::uint64_t kMaxGoldenBytes = std::uint64_t{64} << 20;

std::string Shown(const std::vector<base::TokenId>& ids) {
  return absl::StrCat("[", absl::StrJoin(ids, ", "), "]");
}
std::string Shown(const std::string& text) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text), "\"");
}

// True when equal; records a mismatch otherwise.
template <typename T>
bool Compare(std::size_t case_index, absl::string_view what, const T& expected, const absl::StatusOr<T>& got,
             GoldenReport* report) {
  if (got.ok() && *got == expected) {
    return true;
  }
  if (report->first_mismatches.size() < kMaxReportedMismatches) {
    report->first_mismatches.push_back({case_index, std::string(what), Shown(expected),
                                        got.ok() ? Shown(*got) : std::string(got.status().ToString())});
  }
  return false;
}

absl::StatusOr<std::vector<base::TokenId>> ReadIds(const JsonField& object, absl::string_view name) {
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> elements, object.GetArray(name));
  std::vector<base::TokenId> ids;
  for (const JsonField& element : elements) {
    COMOE_ASSIGN_OR_RETURN(const std::int64_t id, element.AsInt(0, INT32_MAX));
    ids.push_back(static_cast<base::TokenId>(id));
  }
  return ids;
}

absl::Status VerifyCase(const Tokenizer& tokenizer, const JsonField& object, GoldenReport* report) {
  const std::size_t index = report->cases++;
  COMOE_ASSIGN_OR_RETURN(const std::string text, object.GetString("text"));
  COMOE_ASSIGN_OR_RETURN(const std::vector<base::TokenId> ids, ReadIds(object, "ids"));
  const auto encoding = [&](absl::string_view what, const std::vector<base::TokenId>& expected,
                            bool add_special) {
    ++report->encodings;
    report->encodings_equal +=
        Compare(index, what, expected, tokenizer.Encode(text, add_special), report) ? 1 : 0;
  };
  encoding("ids", ids, true);
  std::vector<base::TokenId> decoded_ids = ids;
  if (object.Has("ids_without_special")) {
    COMOE_ASSIGN_OR_RETURN(decoded_ids, ReadIds(object, "ids_without_special"));
    encoding("ids_without_special", decoded_ids, false);
  }
  for (const bool skip_special : {true, false}) {
    const absl::string_view what = skip_special ? "decoded" : "decoded_with_special";
    if (object.Has(what)) {
      COMOE_ASSIGN_OR_RETURN(const std::string expected, object.GetString(what));
      ++report->decodings;
      report->decodings_equal +=
          Compare(index, what, expected, tokenizer.Decode(decoded_ids, skip_special), report) ? 1 : 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GoldenReport> VerifyGolden(const Tokenizer& tokenizer, const std::string& path) {
  COMOE_ASSIGN_OR_RETURN(const std::string content, base::ReadFile(path, kMaxGoldenBytes));
  const nlohmann::json document = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not JSON"));
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> cases, JsonField(&document, path).AsArray());
  GoldenReport report;
  for (const JsonField& object : cases) {
    COMOE_RETURN_IF_ERROR(VerifyCase(tokenizer, object, &report));
  }
  return report;
}

}  // namespace comoe::tokenizer
