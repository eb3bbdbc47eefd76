#include "engine/base/bytes.h"

#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace comoe::base {

absl::StatusOr<std::uint64_t> ParseBytes(absl::string_view text) {
  const auto bad = [text] {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a byte count: write a number with B, KB, MB, GB, KiB, MiB or GiB, like 1.5GiB"));
  };
  absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  std::size_t digits = 0;
  while (digits < trimmed.size() &&
         (absl::ascii_isdigit(static_cast<unsigned char>(trimmed[digits])) || trimmed[digits] == '.')) {
    ++digits;
  }
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(trimmed.substr(0, digits), &number)) {
    return bad();
  }
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(trimmed.substr(digits)));
  constexpr std::array<std::pair<const char*, double>, 9> kUnits = {{{"", 1.0},
                                                                     {"b", 1.0},
                                                                     {"kb", 1e3},
                                                                     {"mb", 1e6},
                                                                     {"gb", 1e9},
                                                                     {"kib", 1024.0},
                                                                     {"mib", 1048576.0},
                                                                     {"gib", 1073741824.0},
                                                                     {"tib", 1099511627776.0}}};
  for (const auto& [name, scale] : kUnits) {
    if (unit == name) {
      const double bytes = number * scale;
      if (!(bytes >= 0 && bytes < 9e18)) {
        return bad();
      }
      return static_cast<std::uint64_t>(std::llround(bytes));
    }
  }
  return bad();
}

std::string FormatBytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%d B", bytes) : absl::StrFormat("%.1f %s", value, kNames[unit]);
}

}  // namespace comoe::base
