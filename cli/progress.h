// A progress line on stderr, redrawn in place on a terminal and printed seldom elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace comoe::cli {

// Not thread-safe. Prints nothing when quiet, and nothing for work that ends within a moment.
class Progress {
 public:
  Progress(std::string what, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(std::uint64_t done, std::uint64_t total, absl::string_view unit);
  // The same with byte counts: "loading experts 12.0 MiB of 25.0 MiB, 48 %".
  void UpdateBytes(std::uint64_t done, std::uint64_t total);

 private:
  void Show(const std::string& text, bool last);

  const std::string what_;
  const bool quiet_;
  const bool terminal_;
  const absl::Time start_;
  absl::Time last_shown_;
  bool line_open_ = false;
};

}  // namespace comoe::cli
