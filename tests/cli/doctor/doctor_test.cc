// `comoe doctor` over the emulated accelerator: sound, and broken in every way that can be injected.
#include "cli/doctor.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "cli/doctor_binding.h"
#include "cli/lane_bench.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/doctor/doctor_rig.h"

namespace comoe::cli {
namespace {

using ::testing::HasSubstr;

TEST(DoctorTest, ASoundSetUpHasNoFailure) {
  DoctorRig rig;
  rig.UseModel();
  const DoctorReport report = rig.Report();
  EXPECT_LT(WorstButTime(report), Severity::kFailure) << FormatTable(report);
  for (const char* id : {"link.width", "link.speed", "link.pinned", "link.rate", "overlap.streams",
                         "plan.sum", "plan.fits", "tiers.slots", "tiers.cache", "tiers.fragmentation",
                         "run.steps", "run.copies", "run.pageable_source"}) {
    ExpectFinding(report, id, Severity::kOk, "");
  }
  EXPECT_NE(report.binding, Binding::kUnknown);
  for (const Finding& finding : report.findings) {
    EXPECT_TRUE(std::count(FindingIds().begin(), FindingIds().end(), finding.id) == 1) << finding.id;
  }
}

TEST(DoctorTest, WithoutAModelTheMachineIsMeasured) {
  const DoctorRig rig;
  const DoctorReport report = rig.Report();
  EXPECT_LT(WorstButTime(report), Severity::kFailure) << FormatTable(report);
  ASSERT_NE(report.Find("predictor.cost"), nullptr);
  EXPECT_THAT(report.Find("predictor.cost")->measured, HasSubstr("synthetic"));
  ExpectFinding(report, "plan.fits", Severity::kNote, "no model", "--model");
  EXPECT_EQ(report.Find("tiers.slots"), nullptr);
}

TEST(DoctorTest, TheCpuDeviceHasHostMemoryAsItsLimit) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.engine.device = "cpu";
  rig.options.engine.policy = "";
  const DoctorReport report = rig.Report();
  EXPECT_LT(WorstButTime(report), Severity::kFailure) << FormatTable(report);
  EXPECT_EQ(report.binding, Binding::kHostMemory);
  ASSERT_NE(report.Find("memory.read_rate"), nullptr);
  EXPECT_THAT(report.Find("memory.read_rate")->measured, HasSubstr("GB/s by 1 threads"));
}

TEST(DoctorTest, RefusedPinningIsNamed) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.fault = "refuse-pinned";
  const DoctorReport report = rig.Report();
  ExpectFinding(report, "link.pinned", Severity::kFailure, "refused", "ulimit -l");
  ExpectFinding(report, "overlap.streams", Severity::kFailure, "pageable source", "link.pinned");
  ExpectFinding(report, "run.pageable_source", Severity::kFailure, "pageable memory", "--pinned-bytes");
  ExpectFinding(report, "link.rate", Severity::kFinding, "pageable");
}

TEST(DoctorTest, OneStreamIsNamed) {
  DoctorRig rig;
  rig.options.fault = "one-stream";
  ExpectFinding(rig.Report(), "overlap.streams", Severity::kFailure, "one stream", "default stream");
}

TEST(DoctorTest, BlockingLaunchesAreNamed) {
  DoctorRig rig;
  rig.options.fault = "blocking-launches";
  ExpectFinding(rig.Report(), "overlap.streams", Severity::kFinding, "blocking launches",
                "CUDA_LAUNCH_BLOCKING");
}

TEST(DoctorTest, ALinkBelowItsNominalRateIsNamed) {
  DoctorRig rig;
  rig.options.fault = "half-rate";
  ExpectFinding(rig.Report(), "link.rate", Severity::kFinding, "% of nominal", "link.width");
}

TEST(DoctorTest, ASlowPredictorIsNamed) {
  DoctorRig rig;
  rig.options.fault = "slow-predictor";
  ExpectFinding(rig.Report(), "predictor.cost", Severity::kFailure, "on synthetic routing",
                "predictor_thread=1");
  rig.UseModel();
  ExpectFinding(rig.Report(), "predictor.cost", Severity::kFailure, "in the run", "predictor_thread=1");
}

TEST(DoctorTest, FailingCopiesAreNamed) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.fault = "failing-copies";
  ExpectFinding(rig.Report(), "run.copies", Severity::kFailure, "failed", "dmesg");
}

TEST(DoctorTest, ATooSmallDeviceBudgetIsNamed) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.engine.expert_cache_fraction = 0.05;
  ExpectFinding(rig.Report(), "tiers.slots", Severity::kFinding, "of 256 experts", "--expert-cache-bytes");
  rig.options.engine.expert_cache_fraction = 0.01;
  ExpectFinding(rig.Report(), "tiers.slots", Severity::kFailure, "of 256 experts", "too small");
  rig.options.engine.expert_cache_fraction = -1.0;
  rig.options.engine.expert_cache_bytes = "1KiB";
  ExpectFinding(rig.Report(), "tiers.slots", Severity::kFailure, "less than one expert", "too small");
}

TEST(DoctorTest, ABudgetThatMakesNoWholeSlotsIsNamed) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.engine.expert_cache_bytes = "1GiB";  // all experts are 18 MiB
  ExpectFinding(rig.Report(), "tiers.fragmentation", Severity::kFinding, "make no slot", "multiple");
}

TEST(DoctorTest, ACacheThatIsOffIsNamed) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.engine.policy = "naive";
  const DoctorReport report = rig.Report();
  ExpectFinding(report, "tiers.cache", Severity::kFinding, "naive", "--policy hub");
  ExpectFinding(report, "overlap.run", Severity::kFinding, "dependency", "--policy hub");
}

TEST(DoctorTest, TooLittlePageLockedMemoryIsNoted) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.engine.pinned_bytes = "1MiB";
  ExpectFinding(rig.Report(), "tiers.pinned", Severity::kNote, "page-locked slots", "--pinned-bytes");
}

TEST(DoctorTest, AnUnknownFaultIsRefused) {
  DoctorRig rig;
  rig.options.fault = "gremlins";
  const absl::Status status = Examine(rig.options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("one-stream"));
}

TEST(DoctorTest, JsonHasStableKeys) {
  DoctorReport report;
  report.device = "a device";
  report.findings.push_back({"link.rate", Severity::kFinding, "\xff slow", "fast", "a remedy", {{"x", 0.5}}});
  const nlohmann::json json = nlohmann::json::parse(FormatJson(report));
  EXPECT_EQ(json["worst"], "finding");
  EXPECT_EQ(json["binding"], "unknown");
  const nlohmann::json& finding = json["findings"][0];
  EXPECT_EQ(finding["id"], "link.rate");
  EXPECT_EQ(finding["severity"], "finding");
  EXPECT_EQ(finding["expected"], "fast");
  EXPECT_EQ(finding["remedy"], "a remedy");
  EXPECT_EQ(finding["values"]["x"], 0.5);
  EXPECT_THAT(FormatTable(report), HasSubstr("-> a remedy"));
}

OverlapTimes Times(LaneTime copy_first, LaneTime compute_first, double copy_call, double compute_call) {
  return {{1.0, copy_call}, {1.0, compute_call}, copy_first, compute_first};
}

TEST(DoctorOverlapTest, TheCauseFollowsFromThePattern) {
  EXPECT_EQ(JudgeOverlap(Times({1.1, 0}, {1.1, 0}, 0.0, 0.0), true), OverlapCause::kNone);
  EXPECT_EQ(JudgeOverlap(Times({2.0, 1}, {1.0, 0}, 1.0, 0.0), false), OverlapCause::kPageableSource);
  EXPECT_EQ(JudgeOverlap(Times({2.0, 1}, {1.0, 0}, 1.0, 0.0), true), OverlapCause::kBlockingCopies);
  EXPECT_EQ(JudgeOverlap(Times({1.0, 0}, {2.0, 1}, 0.0, 1.0), true), OverlapCause::kBlockingLaunches);
  EXPECT_EQ(JudgeOverlap(Times({2.0, 0}, {2.0, 0}, 0.0, 0.0), true), OverlapCause::kOneStream);
}

TEST(DoctorBindingTest, NamesWhatBinds) {
  // Seconds of a step, of compute, of the link; hits; a step with twice the slots.
  EXPECT_EQ(JudgeBinding({}).binding, Binding::kUnknown);
  EXPECT_EQ(JudgeBinding({1.0, 0.3, 0.4, 0.5, 0.8}).binding, Binding::kScheduling);
  EXPECT_EQ(JudgeBinding({1.0, 0.9, 0.7, 0.5, 0.9}).binding, Binding::kCompute);
  EXPECT_EQ(JudgeBinding({1.0, 0.2, 0.95, 0.5, 0.9}).binding, Binding::kLink);
  EXPECT_EQ(JudgeBinding({1.0, 0.2, 0.95, 0.5, 0.3}).binding, Binding::kCapacity);
  EXPECT_EQ(JudgeBinding({1.0, 0.2, 0.95, 0.5, 0.0}).binding, Binding::kLink);
}

// The same three, as a policy's run over the demo model has them.
TEST(DoctorBindingTest, ARunShowsWhatBinds) {
  DoctorRig rig;
  rig.UseModel();
  rig.options.engine.policy = "lru";
  rig.options.engine.copy_computes = 200.0;
  rig.options.engine.expert_cache_fraction = 0.45;
  EXPECT_EQ(rig.Report().binding, Binding::kCapacity);
  rig.options.engine.expert_cache_fraction = 0.02;
  EXPECT_EQ(rig.Report().binding, Binding::kLink);
  rig.options.engine.copy_computes = 1.0;
  EXPECT_EQ(rig.Report().binding, Binding::kScheduling);
}

}  // namespace
}  // namespace comoe::cli
