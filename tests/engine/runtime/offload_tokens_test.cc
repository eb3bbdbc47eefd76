// Whoever decides where experts lie, how many places there are, whoever computes them and however late they
// come: the tokens, and the logits to the bit, are those of the CPU device, where nothing ever moves.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "engine/base/rng.h"
#include "engine/checkpoint/memory_plan.h"
#include "gtest/gtest.h"

namespace comoe {
namespace {

constexpr std::int64_t kPrompt = 9;
constexpr std::int64_t kDecoded = 10;

// A sanitizer makes all of it ten times slower: there, one setting in so many is run, spread over what
// varies.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kStride = 7;
constexpr int kTrainedStride = 23;
#else
constexpr int kStride = 1;
constexpr int kTrainedStride = 1;
#endif

std::string Folder(const std::string& name) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  const std::string base = root != nullptr ? root : ".";
  if (name == "moe-64x2") {
    return base + "/../shared/models/moe-64x2";
  }
  return absl::StrCat(base, name.rfind("moe-", 0) == 0 ? "/models/" : "/tests/fixtures/checkpoints/", name);
}

std::uint64_t ExpertBytes(const std::string& model) {
  const absl::StatusOr<cli::CheckpointFolder> folder = cli::OpenCheckpoint(Folder(model), "");
  EXPECT_TRUE(folder.ok()) << folder.status();
  return folder.ok() ? checkpoint::PlanMemory(folder->config, folder->tensors.expert_dtype).expert_bytes : 1;
}

bool IsThere(const std::string& name) { return ::access((Folder(name) + "/config.json").c_str(), R_OK) == 0; }

struct Setting {
  std::string policy = "resident";
  double share = 1.0;  // 0: one slot
  std::int64_t batch = 1;
  std::string host_lane = "off";
  std::string tiers = "inclusive";
  bool delays = false;
  bool few_pinned = false;       // most experts lie in pageable memory
  std::string expert_file = "";  // or on disk
  std::string clock = "virtual";

  std::string Name() const {
    return absl::StrCat(policy, ", share ", share, ", batch ", batch, ", host lane ", host_lane, ", ", tiers,
                        delays ? ", delays" : "", few_pinned ? ", few pinned" : "",
                        expert_file.empty() ? "" : ", disk", ", ", clock);
  }
};

cli::EngineOptions BaseOptions(const std::string& model, std::int64_t batch) {
  cli::EngineOptions options;
  options.model = Folder(model);
  options.threads = 1;
  options.quiet = true;
  options.max_sequences = batch;
  options.max_batch_tokens = 24;
  return options;
}

cli::EngineOptions OptionsOf(const std::string& model, const Setting& setting) {
  cli::EngineOptions options = BaseOptions(model, setting.batch);
  options.device = "emulated";
  options.policy = setting.policy.substr(0, setting.policy.find(' '));
  options.hub_mode = setting.policy == "hub throughput" ? "throughput" : "latency";
  options.host_lane = setting.host_lane;
  options.tiers = setting.tiers;
  options.emulated_clock = setting.clock;
  options.expert_file = setting.expert_file;
  if (setting.share > 0.0) {
    options.expert_cache_fraction = setting.share;
  } else {
    options.expert_cache_bytes = absl::StrCat(ExpertBytes(model));
  }
  if (setting.few_pinned || !setting.expert_file.empty()) {
    options.pinned_bytes = absl::StrCat(3 * ExpertBytes(model));
  }
  if (setting.delays) {
    options.copy_faults = [](const device::CopyRequest& copy) {
      const std::uint64_t bits = base::RandomBits(77, copy.index);
      return bits % 3 == 0 ? device::CopyFault::Late(1e-6 * static_cast<double>(bits / 3 % 400))
                           : device::CopyFault::None();
    };
  }
  return options;
}

struct Generated {
  std::vector<std::vector<base::TokenId>> tokens;
  std::vector<float> logits;  // of each sequence's last step
  api::OffloadTotals totals;
};

// All prompts in chunks side by side, then a token of each a step.
Generated Generate(api::Engine& engine, std::int64_t batch) {
  Generated out;
  out.tokens.resize(static_cast<std::size_t>(batch));
  const std::int32_t vocab = engine.model_info().vocab_size;
  const std::int32_t blocks = engine.capacity().num_blocks.front() / static_cast<std::int32_t>(batch);
  std::uint64_t step = 0;
  const auto add = [&](api::StepPlan& plan, std::int64_t sequence, std::int64_t position,
                       std::vector<base::TokenId> tokens, bool sample) {
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = base::SequenceId{static_cast<std::uint64_t>(sequence) + 1};
    span.start_position = position;
    span.tokens = std::move(tokens);
    span.groups.resize(engine.model_info().cache_groups.size());
    for (api::GroupState& group : span.groups) {
      for (std::int32_t i = 0; i < blocks; ++i) {
        group.blocks.push_back({static_cast<std::int32_t>(sequence) * blocks + i});
      }
    }
    if (sample) {
      span.logits = api::LogitsMode::kLast;
      span.return_logits = true;
      span.sample.emplace();
      span.sample->temperature = 0.0F;
    }
  };
  const auto run = [&](api::StepPlan plan) {
    plan.step = {step++};
    absl::StatusOr<api::StepResult> result = engine.Step(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) {
      return;
    }
    for (api::SpanResult& span : result->spans) {
      EXPECT_TRUE(span.status.ok()) << span.status;
      if (span.token.has_value()) {
        out.tokens[span.sequence.value - 1].push_back(*span.token);
        out.logits.insert(out.logits.end(), span.logits.begin(), span.logits.end());
      }
    }
  };
  for (std::int64_t s = 0; s < batch; ++s) {
    std::vector<base::TokenId> prompt;
    for (std::int64_t i = 0; i < kPrompt; ++i) {
      prompt.push_back(static_cast<base::TokenId>(
          base::RandomBits(static_cast<std::uint64_t>(s) + 5, static_cast<std::uint64_t>(i)) %
          static_cast<std::uint64_t>(vocab)));
    }
    api::StepPlan plan;
    add(plan, s, 0, prompt, true);
    // Those before it go on beside it.
    for (std::int64_t other = std::max<std::int64_t>(0, s - 2); other < s; ++other) {
      std::vector<base::TokenId>& tokens = out.tokens[static_cast<std::size_t>(other)];
      add(plan, other, kPrompt + static_cast<std::int64_t>(tokens.size()) - 1, {tokens.back()}, true);
    }
    run(std::move(plan));
  }
  for (std::int64_t i = 0; i < kDecoded; ++i) {
    api::StepPlan plan;
    for (std::int64_t s = 0; s < batch; ++s) {
      std::vector<base::TokenId>& tokens = out.tokens[static_cast<std::size_t>(s)];
      add(plan, s, kPrompt + static_cast<std::int64_t>(tokens.size()) - 1, {tokens.back()}, true);
    }
    run(std::move(plan));
  }
  out.totals = engine.offload_totals();
  return out;
}

Generated GenerateWith(const cli::EngineOptions& options, std::int64_t batch) {
  absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  return bundle.ok() ? Generate((*bundle)->engine(), batch) : Generated{};
}

// What is conserved, whatever happened.
void ExpectConserved(const api::OffloadTotals& t) {
  const auto lookups = [&t](base::Tier tier) { return t.tiers[tier].hits + t.tiers[tier].misses; };
  EXPECT_EQ(lookups(base::Tier::kDevice), t.served_hit + t.served_fetch + t.served_host);
  EXPECT_EQ(t.tiers[base::Tier::kDevice].misses, lookups(base::Tier::kPinned));
  EXPECT_EQ(t.tiers[base::Tier::kPinned].misses,
            lookups(base::Tier::kHost) + t.tiers[base::Tier::kDisk].hits);
  EXPECT_EQ(t.prefetch_used_bytes + t.prefetch_wasted_bytes + t.prefetch_pending_bytes,
            t.copies[base::CopyDirection::kHostToDevice].bytes[base::CopyReason::kPrefetch]);
  EXPECT_NEAR(t.wall, t.compute + t.stalled.Sum() + t.other, 1e-9 + 1e-6 * t.wall);
}

class OffloadTokensTest : public ::testing::TestWithParam<const char*> {
 protected:
  void Check(const Setting& setting, const Generated& expected) {
    SCOPED_TRACE(setting.Name());
    const Generated ours = GenerateWith(OptionsOf(GetParam(), setting), setting.batch);
    ASSERT_EQ(ours.tokens, expected.tokens);
    ASSERT_EQ(ours.logits.size(), expected.logits.size());
    ASSERT_EQ(std::memcmp(ours.logits.data(), expected.logits.data(), ours.logits.size() * sizeof(float)), 0);
    ExpectConserved(ours.totals);
  }
};

TEST_P(OffloadTokensTest, AreThoseOfTheCpuWhateverThePolicyAndTheRoom) {
  if (!IsThere(GetParam())) {
    GTEST_SKIP() << GetParam() << " is not here (../shared)";
  }
  const bool trained = std::string(GetParam()).rfind("moe-", 0) == 0;
  int settings = 0;
  for (const std::int64_t batch : {1, 16}) {
    const Generated expected = GenerateWith(BaseOptions(GetParam(), batch), batch);
    for (const char* policy : {"naive", "static", "lru", "simple", "hub", "hub throughput"}) {
      for (const double share : {1.0, 0.5, 0.25, 0.06, 0.0}) {
        for (const char* tiers : {"inclusive", "exclusive"}) {
          for (const char* lane : {"off", "on"}) {
            Setting setting{policy, share, batch, lane, tiers};
            setting.delays = settings % 2 == 1;
            setting.few_pinned = settings % 3 == 1;
            ++settings;
            if (settings % (trained ? kTrainedStride : kStride) == 0) {
              Check(setting, expected);
            }
            if (HasFatalFailure()) {
              return;
            }
          }
        }
      }
    }
    Check({"resident", 1.0, batch}, expected);
  }
}

TEST_P(OffloadTokensTest, AreTheSameFromDisk) {
  if (!IsThere(GetParam())) {
    GTEST_SKIP() << GetParam() << " is not here (../shared)";
  }
  const Generated expected = GenerateWith(BaseOptions(GetParam(), 4), 4);
  const std::string file = absl::StrCat(::testing::TempDir(), "/", GetParam(), ".experts");
  for (const char* policy : {"lru", "simple", "hub"}) {
    for (const char* tiers : {"inclusive", "exclusive"}) {
      for (const char* lane : {"off", "on"}) {
        Setting setting{policy, 0.25, 4, lane, tiers};
        setting.expert_file = file;
        Check(setting, expected);
      }
    }
  }
  ::unlink(file.c_str());
}

// Copies and the host lane on threads of their own.
TEST_P(OffloadTokensTest, AreTheSameOnTheRealClock) {
  if (!IsThere(GetParam())) {
    GTEST_SKIP() << GetParam() << " is not here (../shared)";
  }
  const Generated expected = GenerateWith(BaseOptions(GetParam(), 4), 4);
  for (const char* policy : {"naive", "lru", "simple", "hub"}) {
    for (const char* tiers : {"inclusive", "exclusive"}) {
      for (const char* lane : {"off", "on"}) {
        Setting setting{policy, 0.25, 4, lane, tiers};
        setting.clock = "real";
        setting.few_pinned = std::string(lane) == "on";
        Check(setting, expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OffloadTokensTest,
                         ::testing::Values("mixtral", "mixtral_f16", "mixtral_swa8", "olmoe",
                                           "olmoe_clip_f32", "qwen2_moe", "qwen2_moe_swa_step2", "qwen3_moe",
                                           "qwen3_moe_linear", "qwen3_moe_llama3", "qwen3_moe_tied",
                                           "qwen3_moe_yarn_legacy", "moe-32x4-demo", "moe-64x2"),
                         [](const auto& model) {
                           std::string name = model.param;
                           for (char& c : name) {
                             c = c == '-' ? '_' : c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace comoe
