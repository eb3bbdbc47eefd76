// Files that are written at the end of a long run: whether that will work is known at its start.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace comoe::cli {

// Whether a file can be made, or replaced, at `path`, which `flag` named. The error says which and why.
absl::Status CheckOutputPath(absl::string_view flag, const std::string& path);

}  // namespace comoe::cli
