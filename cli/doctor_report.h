// What `comoe doctor` found: findings with stable ids, as a table for people and as JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace comoe::cli {

enum class Severity {
  kOk,
  kNote,     // worth knowing; nothing has to be done
  kFinding,  // slower than it could be
  kFailure   // broken: fails, or is slower by a multiple; the exit code says so
};
absl::string_view SeverityName(Severity severity);  // "ok", "note", "finding", "failure"

struct Finding {
  std::string id;  // one of FindingIds(); docs/TROUBLESHOOTING.md has a row for each
  Severity severity = Severity::kOk;
  std::string measured;
  std::string expected;
  std::string remedy;                                  // one line; "" where there is nothing to do
  std::vector<std::pair<std::string, double>> values;  // numbers behind it, in SI units
};

// What limits a step.
enum class Binding { kUnknown, kCapacity, kLink, kScheduling, kCompute, kHostMemory };
absl::string_view BindingName(Binding binding);  // "unknown", "capacity", "link", ...

struct DoctorReport {
  std::string device;                 // one line
  std::vector<std::string> hardware;  // a few
  std::vector<Finding> findings;      // in the order in which they were looked for
  Binding binding = Binding::kUnknown;
  std::string binding_reason;

  Severity Worst() const;
  // The first with that id, or nullptr.
  const Finding* Find(absl::string_view id) const;
};

// Every id that a report can have.
absl::Span<const absl::string_view> FindingIds();

std::string FormatTable(const DoctorReport& report);
std::string FormatJson(const DoctorReport& report);

}  // namespace comoe::cli
