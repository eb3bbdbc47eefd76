// The system's own descriptions of the machine (/proc, /sys), below a root that tests put elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace comoe::device {

// Immutable, thread-safe. Paths begin with '/' and are taken below the root; "" is the machine itself. What
// cannot be read is absent: nothing here fails.
class SystemFiles {
 public:
  explicit SystemFiles(std::string root = "") : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  bool Exists(absl::string_view path) const;
  // The first 64 KiB, without white space at the end. May hold any bytes.
  std::string Read(absl::string_view path) const;
  // A number at the start of the file, decimal or 0x...
  std::optional<std::int64_t> ReadNumber(absl::string_view path) const;
  // Names in a folder, sorted.
  std::vector<std::string> List(absl::string_view path) const;
  // Where links lead, below the root; "" when nothing is there.
  std::string Resolve(absl::string_view path) const;

 private:
  std::string Real(absl::string_view path) const;

  std::string root_;
};

}  // namespace comoe::device
