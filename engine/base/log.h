// A line logger to stderr: `2026-01-31T12:00:00.123Z I engine: text`. Thread-safe; a line is one write.
#pragma once

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace comoe::base {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Lines below this level are dropped. Default kInfo. Thread-safe.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// `part` names the folder or service that speaks. Control characters in `text` are shown as \xNN, so that
// text from a client cannot forge a line.
void Log(LogLevel level, absl::string_view part, absl::string_view text);

template <typename... Args>
void Logf(LogLevel level, absl::string_view part, const absl::FormatSpec<Args...>& format,
          const Args&... args) {
  if (level >= GetLogLevel()) {
    Log(level, part, absl::StrFormat(format, args...));
  }
}

}  // namespace comoe::base
