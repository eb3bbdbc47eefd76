// What a trace says of its model.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/checkpoint_folder.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::cli {

// Sizes, name and hash; no weights, no look-ahead. INVALID_ARGUMENT for a model without routed experts.
absl::StatusOr<routing::TraceHeader> DescribeForTrace(const std::string& directory, const std::string& widen);

}  // namespace comoe::cli
