// Text from files as messages may show it.
#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace comoe::checkpoint {

// 'name' with control characters escaped, cut after 200 bytes: a file cannot forge a line or flood a log.
inline std::string Quoted(absl::string_view name) {
  constexpr std::size_t kLimit = 200;
  return absl::StrCat("'", absl::Utf8SafeCEscape(name.substr(0, kLimit)), name.size() > kLimit ? "..." : "",
                      "'");
}

}  // namespace comoe::checkpoint
