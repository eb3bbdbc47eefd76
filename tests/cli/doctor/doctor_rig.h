// The demo model on a machine made up for the test, examined by the doctor.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>

#include "cli/doctor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_machine.h"

namespace comoe::cli {

// The worst of all findings but the one that measures real time, which a busy machine or a sanitizer stretches.
inline Severity WorstButTime(const DoctorReport& report) {
  Severity worst = Severity::kOk;
  for (const Finding& finding : report.findings) {
    worst = finding.id == "predictor.cost" ? worst : std::max(worst, finding.severity);
  }
  return worst;
}

inline std::string DemoModel() {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/models/moe-32x4-demo";
}

struct DoctorRig {
  DoctorRig() {
    options.root = machine.root();
    options.engine.device = "emulated";
    options.engine.threads = 1;
    options.engine.policy = "hub";
    options.engine.kv_bytes = "64MiB";
    options.copy_bytes = std::size_t{4} << 20;
    options.read_bytes = std::uint64_t{64} << 20;
    options.steps = 24;
    options.warmup_steps = 8;
  }
  void UseModel() { options.engine.model = DemoModel(); }

  DoctorReport Report() const {
    absl::StatusOr<DoctorReport> report = Examine(options);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : DoctorReport();
  }

  testing::FakeMachine machine;
  DoctorOptions options;
};

// The report has the finding, with that severity; what was measured and the remedy hold these words.
inline void ExpectFinding(const DoctorReport& report, const std::string& id, Severity severity,
                          const std::string& measured, const std::string& remedy = "") {
  const Finding* finding = report.Find(id);
  ASSERT_NE(finding, nullptr) << id << "\n" << FormatTable(report);
  EXPECT_EQ(finding->severity, severity) << FormatTable(report);
  EXPECT_THAT(finding->measured, ::testing::HasSubstr(measured));
  EXPECT_THAT(finding->remedy, ::testing::HasSubstr(remedy));
}

}  // namespace comoe::cli
