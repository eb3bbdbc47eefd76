#include "engine/device/hardware/system_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace comoe::device {
namespace {

constexpr std::size_t kLimitBytes = std::size_t{64} << 10;

}  // namespace

std::string SystemFiles::Real(absl::string_view path) const { return absl::StrCat(root_, path); }

bool SystemFiles::Exists(absl::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(Real(path), error);
}

std::string SystemFiles::Read(absl::string_view path) const {
  std::ifstream file(Real(path), std::ios::binary);
  std::string text(kLimitBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

std::optional<std::int64_t> SystemFiles::ReadNumber(absl::string_view path) const {
  const std::string text = Read(path);
  const absl::string_view word = absl::string_view(text).substr(0, text.find_first_of(" \t\n"));
  std::int64_t value = 0;
  if (absl::StartsWith(word, "0x") ? absl::SimpleHexAtoi(word, &value) : absl::SimpleAtoi(word, &value)) {
    return value;
  }
  return std::nullopt;
}

std::vector<std::string> SystemFiles::List(absl::string_view path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(Real(path), error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string SystemFiles::Resolve(absl::string_view path) const {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(Real(path), error);
  const std::filesystem::path root = std::filesystem::canonical(root_.empty() ? "/" : root_, error);
  if (error || real.empty()) {
    return "";
  }
  const std::string prefix = root == "/" ? "" : root.string();
  return absl::StartsWith(real.string(), prefix) ? real.string().substr(prefix.size()) : "";
}

}  // namespace comoe::device
