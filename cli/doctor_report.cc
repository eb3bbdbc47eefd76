#include "cli/doctor_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

constexpr std::array<absl::string_view, 4> kSeverityNames = {"ok", "note", "finding", "failure"};
constexpr std::array<absl::string_view, 6> kBindingNames = {"unknown",    "capacity", "link",
                                                            "scheduling", "compute",  "host memory"};

constexpr absl::string_view kIds[] = {
    "gpu.present",         "link.width",          "link.speed",     "link.pinned",
    "link.rate",           "link.pageable",       "link.blob_rate", "overlap.streams",
    "host.cores",          "host.load",           "host.kernels",   "host.governor",
    "host.huge_pages",     "host.swap",           "host.numa",      "memory.modules",
    "memory.channels",     "memory.read_rate",    "plan.sum",       "plan.fits",
    "plan.device",         "plan.memlock",        "tiers.slots",    "tiers.cache",
    "tiers.pinned",        "tiers.fragmentation", "run.steps",      "run.copies",
    "run.pageable_source", "overlap.run",         "predictor.cost", "binding"};

// Words of `text` in lines of at most `width` characters.
std::vector<std::string> Wrap(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
      lines.emplace_back(word);
    } else {
      absl::StrAppend(&lines.back(), " ", word);
    }
  }
  return lines;
}

}  // namespace

absl::string_view SeverityName(Severity severity) {
  return kSeverityNames[static_cast<std::size_t>(severity)];
}

absl::string_view BindingName(Binding binding) { return kBindingNames[static_cast<std::size_t>(binding)]; }

absl::Span<const absl::string_view> FindingIds() { return kIds; }

Severity DoctorReport::Worst() const {
  Severity worst = Severity::kOk;
  for (const Finding& finding : findings) {
    worst = std::max(worst, finding.severity);
  }
  return worst;
}

const Finding* DoctorReport::Find(absl::string_view id) const {
  const auto found =
      std::find_if(findings.begin(), findings.end(), [&id](const Finding& f) { return f.id == id; });
  return found == findings.end() ? nullptr : &*found;
}

std::string FormatTable(const DoctorReport& report) {
  constexpr std::size_t kMeasured = 62;
  constexpr std::size_t kExpected = 34;
  std::string out = absl::StrCat("device    ", report.device, "\n");
  for (const std::string& line : report.hardware) {
    absl::StrAppend(&out, "hardware  ", line, "\n");
  }
  absl::StrAppendFormat(&out, "\n%-8s %-20s %-*s  %s\n", "", "what", static_cast<int>(kMeasured), "measured",
                        "expected");
  for (const Finding& finding : report.findings) {
    const std::vector<std::string> measured = Wrap(finding.measured, kMeasured);
    const std::vector<std::string> expected = Wrap(finding.expected, kExpected);
    for (std::size_t i = 0; i < std::max({measured.size(), expected.size(), std::size_t{1}}); ++i) {
      std::string line =
          absl::StrFormat("%-8s %-20s %-*s  %s", i == 0 ? SeverityName(finding.severity) : "",
                          i == 0 ? finding.id : "", static_cast<int>(kMeasured),
                          i < measured.size() ? measured[i] : "", i < expected.size() ? expected[i] : "");
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(&out, line, "\n");
    }
    if (finding.severity != Severity::kOk && !finding.remedy.empty()) {
      absl::StrAppend(&out, "         -> ", finding.remedy, "\n");
    }
  }
  std::array<int, kSeverityNames.size()> counts{};
  for (const Finding& finding : report.findings) {
    ++counts[static_cast<std::size_t>(finding.severity)];
  }
  absl::StrAppendFormat(&out, "\nwhat binds: %s: %s\n%d failures, %d findings, %d notes, %d ok\n",
                        BindingName(report.binding), report.binding_reason, counts[3], counts[2], counts[1],
                        counts[0]);
  return out;
}

std::string FormatJson(const DoctorReport& report) {
  nlohmann::json out = {{"device", report.device},
                        {"hardware", report.hardware},
                        {"worst", std::string(SeverityName(report.Worst()))},
                        {"binding", std::string(BindingName(report.binding))},
                        {"binding_reason", report.binding_reason},
                        {"findings", nlohmann::json::array()}};
  for (const Finding& finding : report.findings) {
    nlohmann::json values = nlohmann::json::object();
    for (const auto& [name, value] : finding.values) {
      values[name] = std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
    }
    out["findings"].push_back({{"id", finding.id},
                               {"severity", std::string(SeverityName(finding.severity))},
                               {"measured", finding.measured},
                               {"expected", finding.expected},
                               {"remedy", finding.remedy},
                               {"values", std::move(values)}});
  }
  // Bytes of the system's files may be no UTF-8.
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace comoe::cli
