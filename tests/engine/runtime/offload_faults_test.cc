// Copies that fail or never end, memory that is refused, and what a prefill leaves of a decode set; and that
// a step allocates nothing.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/forced_texts.h"
#include "cli/offload_run.h"
#include "engine/base/rng.h"
#include "gtest/gtest.h"

// Sanitizers bring their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COMOE_COUNTS_ALLOCATIONS 1
namespace {

std::atomic<bool> g_counting{false};
std::atomic<std::int64_t> g_allocations{0};

void* Allocate(std::size_t bytes) {
  if (g_counting.load(std::memory_order_relaxed)) {
    g_allocations.fetch_add(1, std::memory_order_relaxed);
  }
  if (void* data = std::malloc(bytes > 0 ? bytes : 1)) {
    return data;
  }
  std::abort();
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) { return Allocate(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return Allocate(bytes); }
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
#endif

namespace comoe {
namespace {

std::string Root() {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return root != nullptr ? root : ".";
}
std::string Demo() { return Root() + "/models/moe-32x4-demo"; }

cli::EngineOptions Options(const std::string& policy, std::int64_t sequences) {
  cli::EngineOptions options;
  options.model = Demo();
  options.device = "emulated";
  options.policy = policy;
  options.expert_cache_fraction = 0.25;
  options.threads = 1;
  options.quiet = true;
  options.max_sequences = sequences;
  options.max_batch_tokens = 512;
  return options;
}

// A row for each sequence: the token `step` of a text of its own.
api::StepPlan Decode(const api::Engine& engine, std::int64_t sequences, std::int64_t step) {
  api::StepPlan plan;
  plan.step = {static_cast<std::uint64_t>(step)};
  const std::int32_t blocks = engine.capacity().num_blocks.front() / static_cast<std::int32_t>(sequences);
  for (std::int64_t s = 0; s < sequences; ++s) {
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = base::SequenceId{static_cast<std::uint64_t>(s) + 1};
    span.start_position = step;
    span.tokens = {static_cast<base::TokenId>(
        base::RandomBits(static_cast<std::uint64_t>(s) + 11, static_cast<std::uint64_t>(step)) % 1000)};
    span.logits = api::LogitsMode::kLast;
    span.return_logits = true;
    api::GroupState& group = span.groups.emplace_back();
    for (std::int32_t i = 0; i < blocks; ++i) {
      group.blocks.push_back({static_cast<std::int32_t>(s) * blocks + i});
    }
  }
  return plan;
}

std::vector<api::StepResult> RunDecodes(api::Engine& engine, std::int64_t sequences, std::int64_t steps) {
  std::vector<api::StepResult> results;
  for (std::int64_t i = 0; i < steps; ++i) {
    absl::StatusOr<api::StepResult> result = engine.Step(Decode(engine, sequences, i));
    EXPECT_TRUE(result.ok()) << result.status();
    results.push_back(result.ok() ? *std::move(result) : api::StepResult{});
  }
  return results;
}

std::unique_ptr<cli::EngineBundle> Load(const cli::EngineOptions& options) {
  absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  return bundle.ok() ? *std::move(bundle) : nullptr;
}

class OffloadFaultsTest : public ::testing::TestWithParam<const char*> {};

// A copy does not arrive in one step. Those sequences have a status from then on (their state lacks a
// row), the others' logits are what they would have been, and new sequences find everything working.
void ExpectOnlyItsSequencesSuffer(const std::string& policy, const device::CopyFault& fault,
                                  absl::StatusCode code) {
  constexpr std::int64_t kSequences = 6;
  constexpr std::int64_t kSteps = 12;
  const auto expected = RunDecodes(Load(Options(policy, kSequences))->engine(), kSequences, kSteps);
  bool broken = false;
  cli::EngineOptions options = Options(policy, kSequences);
  options.copy_limit = absl::Seconds(1);
  int injected = 0;
  options.copy_faults = [&](const device::CopyRequest& copy) {
    if (broken && injected == 0 && copy.stage.kind == base::StageKind::kCopy &&
        copy.stage.reason == base::CopyReason::kDemand && copy.stage.layer == 3 &&
        copy.direction == base::CopyDirection::kHostToDevice) {
      ++injected;
      return fault;
    }
    return device::CopyFault::None();
  };
  const std::unique_ptr<cli::EngineBundle> bundle = Load(options);
  ASSERT_NE(bundle, nullptr);
  std::set<std::uint64_t> failed;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    broken = i == 5;
    const absl::StatusOr<api::StepResult> result =
        bundle->engine().Step(Decode(bundle->engine(), kSequences, i));
    ASSERT_TRUE(result.ok()) << result.status();
    for (std::size_t s = 0; s < result->spans.size(); ++s) {
      const api::SpanResult& span = result->spans[s];
      if (!span.status.ok()) {
        EXPECT_EQ(i, 5) << span.status;
        EXPECT_EQ(span.status.code(), code) << span.status;
        failed.insert(span.sequence.value);
      } else if (failed.count(span.sequence.value) == 0) {
        EXPECT_EQ(span.logits, expected[static_cast<std::size_t>(i)].spans[s].logits) << "step " << i;
      }
    }
  }
  EXPECT_GT(injected, 0);
  EXPECT_FALSE(failed.empty());
  EXPECT_GT(bundle->engine().offload_totals().failed_copies, 0U);
  // Every sequence anew.
  const auto again = RunDecodes(bundle->engine(), kSequences, kSteps);
  for (std::size_t i = 0; i < again.size(); ++i) {
    for (std::size_t s = 0; s < again[i].spans.size(); ++s) {
      EXPECT_TRUE(again[i].spans[s].status.ok()) << again[i].spans[s].status;
      EXPECT_EQ(again[i].spans[s].logits, expected[i].spans[s].logits) << "step " << i << " again";
    }
  }
}

TEST_P(OffloadFaultsTest, ACopyThatFailsEndsThoseWhoNeedIt) {
  ExpectOnlyItsSequencesSuffer(GetParam(), device::CopyFault::Fail(absl::DataLossError("broken copy")),
                               absl::StatusCode::kDataLoss);
}

TEST_P(OffloadFaultsTest, ACopyThatNeverEndsDoesTheSame) {
  ExpectOnlyItsSequencesSuffer(GetParam(), device::CopyFault::Hang(), absl::StatusCode::kDeadlineExceeded);
}

// The host lane's rows do not get to the host: the step fails after its misses were decided, and none of them
// was fetched. The next step finds every expert all the same.
TEST_P(OffloadFaultsTest, AStepThatEndsInItsMidstIsForgotten) {
  cli::EngineOptions options = Options(GetParam(), 6);
  options.host_lane = "on";
  const auto expected = RunDecodes(Load(options)->engine(), 6, 12);
  bool broken = false;
  int injected = 0;
  options.copy_faults = [&](const device::CopyRequest& copy) {
    if (!broken || injected > 0 || copy.stage.kind != base::StageKind::kHostExpert ||
        copy.direction != base::CopyDirection::kDeviceToHost) {
      return device::CopyFault::None();
    }
    ++injected;
    return device::CopyFault::Fail(absl::DataLossError("broken copy"));
  };
  const std::unique_ptr<cli::EngineBundle> bundle = Load(options);
  ASSERT_NE(bundle, nullptr);
  RunDecodes(bundle->engine(), 6, 3);
  broken = true;
  int failed = 0;
  for (std::int64_t i = 3; i < 12 && failed == 0; ++i) {
    failed += bundle->engine().Step(Decode(bundle->engine(), 6, i)).ok() ? 0 : 1;
  }
  ASSERT_EQ(injected, 1);
  EXPECT_EQ(failed, 1);
  const auto again = RunDecodes(bundle->engine(), 6, 12);
  for (std::size_t i = 0; i < again.size(); ++i) {
    for (std::size_t s = 0; s < again[i].spans.size(); ++s) {
      ASSERT_TRUE(again[i].spans[s].status.ok()) << again[i].spans[s].status << ", step " << i;
      EXPECT_EQ(again[i].spans[s].logits, expected[i].spans[s].logits) << "step " << i;
    }
  }
}

// Many copies fail, in all directions, and one never ends. Afterwards every expert can be had again.
TEST_P(OffloadFaultsTest, AfterManyFaultsAllIsAsBefore) {
  constexpr std::int64_t kSequences = 6;
  const auto expected = RunDecodes(Load(Options(GetParam(), kSequences))->engine(), kSequences, 12);
  for (const char* tiers : {"inclusive", "exclusive"}) {
    for (const std::uint64_t seed : {1, 2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(tiers, ", seed ", seed));
      cli::EngineOptions options = Options(GetParam(), kSequences);
      options.tiers = tiers;
      options.pinned_bytes = "288KiB";
      options.host_lane = seed % 2 == 0 ? "on" : "off";
      options.copy_limit = absl::Seconds(1);
      bool broken = false;
      std::uint64_t copies = 0;
      int hung = 0;
      options.copy_faults = [&](const device::CopyRequest& copy) {
        const std::uint64_t draw = base::RandomBits(seed, ++copies) % 100;
        if (!broken || copy.stage.kind != base::StageKind::kCopy || draw >= 5) {
          return device::CopyFault::None();
        }
        return draw == 0 && ++hung == 1 ? device::CopyFault::Hang()
                                        : device::CopyFault::Fail(absl::DataLossError("broken copy"));
      };
      const std::unique_ptr<cli::EngineBundle> bundle = Load(options);
      ASSERT_NE(bundle, nullptr);
      broken = true;
      for (int round = 0; round < 4; ++round) {
        RunDecodes(bundle->engine(), kSequences, 8);  // a step's status is not its sequences'
      }
      broken = false;
      EXPECT_GT(bundle->engine().offload_totals().failed_copies, 0U);
      // Orders that were given while copies still failed may end now.
      RunDecodes(bundle->engine(), kSequences, 2);
      const auto again = RunDecodes(bundle->engine(), kSequences, 12);
      for (std::size_t i = 0; i < again.size(); ++i) {
        for (std::size_t s = 0; s < again[i].spans.size(); ++s) {
          ASSERT_TRUE(again[i].spans[s].status.ok()) << again[i].spans[s].status << ", step " << i;
          EXPECT_EQ(again[i].spans[s].logits, expected[i].spans[s].logits) << "step " << i;
        }
      }
    }
  }
}

// Page-locking refused and not asked for, with either sort of tiers.
std::vector<cli::EngineOptions> WithoutPageLocking(const std::string& policy) {
  std::vector<cli::EngineOptions> all;
  for (const char* tiers : {"inclusive", "exclusive"}) {
    for (const bool refused : {true, false}) {
      cli::EngineOptions& options = all.emplace_back(Options(policy, 2));
      options.tiers = tiers;
      options.refuse_pinned = refused;
      options.page_lock = refused ? "on" : "off";
    }
  }
  return all;
}

std::string Describe(const cli::EngineOptions& options) {
  return absl::StrCat(options.tiers, options.refuse_pinned ? ", refused" : ", off");
}

// Checks what is the same on every clock.
api::OffloadTotals RunPageable(const cli::EngineOptions& options) {
  const auto expected = RunDecodes(Load(Options(options.policy, 2))->engine(), 2, 8);
  const std::unique_ptr<cli::EngineBundle> bundle = Load(options);
  if (bundle == nullptr) {
    return {};  // a failure already
  }
  const auto ours = RunDecodes(bundle->engine(), 2, 8);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    for (std::size_t s = 0; s < ours[i].spans.size(); ++s) {
      EXPECT_EQ(ours[i].spans[s].logits, expected[i].spans[s].logits);
    }
  }
  const api::OffloadTotals& totals = bundle->engine().offload_totals();
  EXPECT_GT(totals.unpinned_copies, 0U);
  EXPECT_GT(totals.stalled[base::WaitEdge::kDemandCopy], 0.0);
  return totals;
}

TEST_P(OffloadFaultsTest, WithoutPageLockingItIsSlowAndSaysSo) {
  for (const cli::EngineOptions& options : WithoutPageLocking(GetParam())) {
    SCOPED_TRACE(Describe(options));
    const api::OffloadTotals totals = RunPageable(options);
    constexpr auto kLink = base::CopyDirection::kHostToDevice;
    // Decisions go by what copies take here, one after the other.
    const api::CopyTotals& copies = totals.copies[kLink];
    const double rate = static_cast<double>(copies.bytes.Sum()) / copies.seconds;
    EXPECT_NEAR(copies.bytes_per_second, rate, 0.02 * rate);
    // While whoever queues the device's work is held up by a copy, the device waits for that copy. All else
    // the host does takes no time.
    EXPECT_GT(totals.copy_busy[kLink], totals.copy_overlapped[kLink]);
    EXPECT_NEAR(totals.wall, totals.compute + totals.stalled.Sum(), 1e-9);
  }
}

// Guesses are queued by the threads that hear of copies, then, and whoever queues the device's work waits for
// them.
TEST_P(OffloadFaultsTest, WithoutPageLockingOnTheRealClock) {
  for (cli::EngineOptions options : WithoutPageLocking(GetParam())) {
    SCOPED_TRACE(Describe(options));
    options.emulated_clock = "real";
    const api::OffloadTotals totals = RunPageable(options);
    EXPECT_LE(totals.compute + totals.stalled.Sum(), totals.wall + 1e-9);
  }
}

// The packed file is damaged while it is served: who needs what was damaged is told so, with the lane and
// without, the others go on.
TEST_P(OffloadFaultsTest, ADamagedBlobEndsThoseWhoNeedIt) {
  for (const char* lane : {"off", "on"}) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/damaged-", GetParam(), ".experts");
    cli::EngineOptions options = Options(GetParam(), 6);
    options.expert_file = path;
    options.pinned_bytes = "288KiB";
    options.host_lane = lane;
    const auto expected = RunDecodes(Load(Options(GetParam(), 6))->engine(), 6, 8);
    const std::unique_ptr<cli::EngineBundle> bundle = Load(options);
    ASSERT_NE(bundle, nullptr);
    {
      // Somewhere in every eighth page, past the header: some experts are hurt, most are not.
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(0, std::ios::end);
      const auto size = static_cast<std::int64_t>(file.tellg());
      for (std::int64_t at = std::int64_t{1} << 20; at + 8 < size; at += std::int64_t{40} * 4096 * 18) {
        file.seekp(at);
        file.write("damaged!", 8);
      }
    }
    std::set<std::uint64_t> failed;
    for (std::int64_t i = 0; i < 8; ++i) {
      const absl::StatusOr<api::StepResult> result = bundle->engine().Step(Decode(bundle->engine(), 6, i));
      ASSERT_TRUE(result.ok()) << result.status();
      for (std::size_t s = 0; s < result->spans.size(); ++s) {
        const api::SpanResult& span = result->spans[s];
        if (!span.status.ok()) {
          EXPECT_EQ(span.status.code(), absl::StatusCode::kDataLoss) << span.status;
          failed.insert(span.sequence.value);
        } else if (failed.count(span.sequence.value) == 0) {
          EXPECT_EQ(span.logits, expected[static_cast<std::size_t>(i)].spans[s].logits) << "step " << i;
        }
      }
    }
    EXPECT_FALSE(failed.empty()) << "host lane " << lane;
    std::remove(path.c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, OffloadFaultsTest, ::testing::Values("naive", "lru", "simple", "hub"));

double HitRate(const api::OffloadTotals& t) {
  return static_cast<double>(t.served_hit) /
         static_cast<double>(t.served_hit + t.served_fetch + t.served_host);
}

// Four texts decode side by side; a prompt of 1,500 tokens of others is computed in their midst, or is not.
struct Rates {
  double before = 0.0;
  double after = 0.0;
};
Rates AroundAPrefill(const std::string& policy, bool prefill) {
  constexpr std::int32_t kTexts = 4;
  constexpr std::int64_t kPrompt = 1500;
  const std::unique_ptr<cli::EngineBundle> bundle = Load(Options(policy, kTexts + 1));
  api::Engine& engine = bundle->engine();
  const auto texts = cli::ReadForcedIds(Demo() + "/golden_nll.json", engine.model_info().vocab_size);
  EXPECT_TRUE(texts.ok()) << texts.status();
  const std::int32_t blocks = engine.capacity().num_blocks.front() / (kTexts + 1);
  const auto add = [&](api::StepPlan& plan, std::int32_t place, std::int64_t position,
                       absl::Span<const base::TokenId> tokens) {
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = base::SequenceId{static_cast<std::uint64_t>(place) + 1};
    span.start_position = position;
    span.tokens.assign(tokens.begin(), tokens.end());
    span.groups.resize(1);
    for (std::int32_t i = 0; i < blocks; ++i) {
      span.groups[0].blocks.push_back({place * blocks + i});
    }
  };
  const auto decode = [&](std::int64_t begin, std::int64_t end) {
    const api::OffloadTotals totals = engine.offload_totals();
    for (std::int64_t i = begin; i < end; ++i) {
      api::StepPlan plan;
      for (std::int32_t t = 0; t < kTexts; ++t) {
        add(plan, t, i,
            absl::MakeConstSpan((*texts)[static_cast<std::size_t>(t)])
                .subspan(static_cast<std::size_t>(i), 1));
      }
      EXPECT_TRUE(engine.Step(plan).ok());
    }
    return HitRate(cli::Difference(engine.offload_totals(), totals));
  };
  decode(0, 100);
  Rates rates;
  rates.before = decode(100, 300);
  std::vector<base::TokenId> prompt;
  for (std::size_t i = kTexts; i < texts->size(); ++i) {
    prompt.insert(prompt.end(), (*texts)[i].begin(), (*texts)[i].end());
  }
  EXPECT_GE(prompt.size(), static_cast<std::size_t>(kPrompt));
  for (std::int64_t at = 0; prefill && at < kPrompt; at += 500) {
    api::StepPlan plan;
    add(plan, kTexts, at, absl::MakeConstSpan(prompt).subspan(static_cast<std::size_t>(at), 500));
    EXPECT_TRUE(engine.Step(plan).ok());
  }
  rates.after = decode(300, 500);
  return rates;
}

TEST(OffloadPrefillTest, LeavesTheDecodeSetWhereItWas) {
  for (const char* policy : {"lru", "simple"}) {
    const Rates with = AroundAPrefill(policy, true);
    const Rates without = AroundAPrefill(policy, false);
    EXPECT_NEAR(with.after, with.before, 0.05) << policy;
    EXPECT_NEAR(with.after, without.after, 0.01) << policy;
    RecordProperty(absl::StrCat(policy, "_before"), absl::StrCat(with.before));
    RecordProperty(absl::StrCat(policy, "_after"), absl::StrCat(with.after));
  }
}

// What a step allocates is its result and nothing else: as much as with everything resident, whatever moves.
TEST(OffloadAllocationTest, StepsAllocateNothingButTheirResult) {
#ifdef COMOE_COUNTS_ALLOCATIONS
  constexpr std::int64_t kWarmup = 200;
  const auto count = [](const cli::EngineOptions& options) {
    const std::unique_ptr<cli::EngineBundle> bundle = Load(options);
    if (bundle == nullptr) {
      return std::int64_t{-1};
    }
    api::Engine& engine = bundle->engine();
    std::vector<api::StepPlan> plans;
    for (std::int64_t i = 0; i < kWarmup + 32; ++i) {
      plans.push_back(Decode(engine, 4, i));
    }
    std::int64_t allocations = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      g_allocations = 0;
      g_counting = static_cast<std::int64_t>(i) >= kWarmup;
      const absl::StatusOr<api::StepResult> result = engine.Step(plans[i]);
      g_counting = false;
      allocations += g_allocations;
      EXPECT_TRUE(result.ok());
    }
    return allocations;
  };
  cli::EngineOptions resident;
  resident.model = Demo();
  resident.threads = 1;
  resident.quiet = true;
  resident.max_sequences = 4;
  const std::int64_t expected = count(resident);
  // The result: a list of spans, and each span's logits.
  EXPECT_EQ(expected, 32 * (1 + 4));
  for (const char* policy : {"resident", "naive", "static", "lru", "simple", "hub"}) {
    for (const char* lane : {"off", "on"}) {
      for (const char* tiers : {"inclusive", "exclusive"}) {
        cli::EngineOptions options = Options(policy, 4);
        options.expert_cache_fraction = std::string(policy) == "resident" ? 1.0 : 0.25;
        options.host_lane = lane;
        options.tiers = tiers;
        options.pinned_bytes = "4MiB";
        EXPECT_EQ(count(options), expected) << policy << ", host lane " << lane << ", " << tiers;
      }
    }
  }
#else
  GTEST_SKIP() << "a sanitizer counts for itself";
#endif
}

}  // namespace
}  // namespace comoe
