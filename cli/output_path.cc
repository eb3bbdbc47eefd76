#include "cli/output_path.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace comoe::cli {

absl::Status CheckOutputPath(absl::string_view flag, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, " is a folder: name a file in it"));
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (::access((folder + "/").c_str(), W_OK | X_OK) == 0) {  // with the slash only a folder is there
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat(flag, " ", path, ": ", folder,
                                                 " cannot be written: make the folder, or name another"));
}

}  // namespace comoe::cli
