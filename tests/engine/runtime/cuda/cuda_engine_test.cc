// The engine on a CUDA device, over the fake plugin: device memory that the host must not touch, streams that
// run on their own. With the reference loops as kernels, every bit is that of the CPU device.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/offline.h"
#include "engine/device/cuda/cuda_device.h"
#include "engine/kernels/cuda/cuda_kernels.h"
#include "engine/kernels/ops.h"
#include "gtest/gtest.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_cuda_kernels.h"
#include "tests/support/fake_cuda_launches.h"

namespace comoe {
namespace {

const std::vector<base::TokenId> kPrompt = {5, 9, 2, 7, 11, 3, 8, 1, 4, 6, 10, 12, 5, 5, 20, 30, 21, 9, 2};
constexpr int kDecoded = 5;

std::string Folder(const std::string& name) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return absl::StrCat(root != nullptr ? root : ".", "/tests/fixtures/checkpoints/", name);
}

cli::EngineOptions CpuOptions(const std::string& model) {
  cli::EngineOptions options;
  options.model = Folder(model);
  options.threads = 1;
  options.kernels = "ref";
  options.quiet = true;
  options.max_batch_tokens = 8;
  options.kv_bytes = "8MiB";
  return options;
}

cli::EngineOptions CudaOptions(const std::string& model) {
  cli::EngineOptions options = CpuOptions(model);
  options.device = "cuda";
  options.device_kernels = &testing::FakeCudaKernels();
  options.make_device = [] { return device::MakeCudaDevice(testing::FakeCudaPlugin(), {}); };
  return options;
}

// The operations of a card, down to their launches, which are the fake's.
cli::EngineOptions LaunchOptions(const std::string& model) {
  cli::EngineOptions options = CudaOptions(model);
  options.device_kernels = nullptr;
  options.make_device = [] { return device::MakeCudaDevice(testing::FakeCudaPluginWithKernels(), {}); };
  return options;
}

struct Generated {
  std::vector<float> logits;
  std::vector<base::TokenId> tokens;
};

Generated Generate(const cli::EngineOptions& options) {
  Generated run;
  absl::StatusOr<std::unique_ptr<cli::EngineBundle>> loaded = cli::LoadEngine(options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) {
    return run;
  }
  cli::OfflineSequence sequence((*loaded)->engine());
  const absl::Status prompt =
      sequence.AppendWithLogits(kPrompt, [&run](std::int64_t, absl::Span<const float> logits) {
        run.logits.insert(run.logits.end(), logits.begin(), logits.end());
      });
  EXPECT_TRUE(prompt.ok()) << prompt;
  api::SamplingParams greedy;
  greedy.temperature = 0.0F;
  base::TokenId token = 3;
  for (int i = 0; i < kDecoded; ++i) {
    const absl::StatusOr<api::SpanResult> next = sequence.AppendAndSample({&token, 1}, greedy);
    EXPECT_TRUE(next.ok()) << next.status();
    if (!next.ok()) {
      return run;
    }
    token = *next->token;
    run.tokens.push_back(token);
  }
  return run;
}

void ExpectSame(const Generated& want, const Generated& got) {
  EXPECT_EQ(want.tokens, got.tokens);
  ASSERT_EQ(want.logits.size(), got.logits.size());
  EXPECT_EQ(std::memcmp(want.logits.data(), got.logits.data(), want.logits.size() * sizeof(float)), 0);
}

TEST(CudaEngine, EveryArchitectureGivesTheCpusBits) {
  for (const char* model : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    SCOPED_TRACE(model);
    const Generated want = Generate(CpuOptions(model));
    cli::EngineOptions options = CudaOptions(model);
    options.policy = "resident";
    ExpectSame(want, Generate(options));
    options.policy = "lru";
    options.expert_cache_fraction = 0.3;
    ExpectSame(want, Generate(options));
  }
}

TEST(CudaEngine, EveryPolicyAndTierGivesTheCpusBits) {
  const Generated want = Generate(CpuOptions("qwen3_moe"));
  for (const char* policy : {"naive", "static", "lru", "simple", "hub"}) {
    for (const char* host_lane : {"off", "on"}) {
      for (const bool few_pinned : {false, true}) {
        SCOPED_TRACE(absl::StrCat(policy, ", host lane ", host_lane, few_pinned ? ", few pinned" : ""));
        cli::EngineOptions options = CudaOptions("qwen3_moe");
        options.policy = policy;
        options.host_lane = host_lane;
        options.expert_cache_fraction = 0.25;
        options.pinned_bytes = few_pinned ? "64KiB" : "";
        ExpectSame(want, Generate(options));
      }
    }
  }
}

TEST(CudaEngine, LaunchesGetWhatTheCpuGets) {
  for (const char* model : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    const Generated want = Generate(CpuOptions(model));
    for (const char* policy : {"resident", "lru", "hub"}) {
      for (const char* host_lane : {"off", "on"}) {
        for (const char* activations : {"f32", "bf16"}) {
          SCOPED_TRACE(absl::StrCat(model, ", ", policy, ", host lane ", host_lane, ", ", activations));
          cli::EngineOptions options = LaunchOptions(model);
          options.policy = policy;
          options.activations = activations;
          if (policy != std::string("resident")) {
            options.host_lane = host_lane;
            options.expert_cache_fraction = 0.3;
          }
          ExpectSame(want, Generate(options));
        }
      }
    }
  }
}

// Arguments of more than the ring of a stream has in a part.
TEST(CudaEngine, AStepMayHaveManyRows) {
  constexpr std::int64_t kRows = 20000;
  constexpr std::int64_t kChosen = 8;
  constexpr std::int64_t kColumns = 4;
  const std::unique_ptr<device::Device> device =
      *device::MakeCudaDevice(testing::FakeCudaPluginWithKernels(), {});
  const auto stream = *device->CreateStream("compute", device::StreamKind::kCompute);
  const auto rows = [](const device::Buffer& buffer, std::int64_t count) {
    return tensor::TensorView{buffer.data(), tensor::DType::kF32, count, kColumns, kColumns, {}};
  };
  const auto filled = [&device](std::int64_t count, float value) {
    device::Buffer buffer = *device->Allocate(
        device::MemoryKind::kPinned, static_cast<std::size_t>(count * kColumns) * sizeof(float), 256);
    std::fill_n(reinterpret_cast<float*>(buffer.data()), count * kColumns, value);
    return buffer;
  };
  const device::Buffer y = filled(kRows * kChosen, 1.0F);
  const device::Buffer out = filled(kRows, 0.0F);
  const device::Buffer again = filled(kRows, 0.0F);
  std::vector<std::int32_t> source(kRows * kChosen);
  std::vector<float> weights(source.size());
  kernels::MoeCombineArgs args;
  args.y = rows(y, kRows * kChosen);
  args.source = source;
  args.weights = weights;
  for (const device::Buffer* target : {&out, &again}) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::int32_t>(i);
      weights[i] = static_cast<float>(i / kChosen) * (target == &out ? 1.0F : -1.0F);
    }
    args.out = rows(*target, kRows);
    ASSERT_TRUE(kernels::CudaKernels(kernels::CudaPrecision::kExact).moe_combine(args, *stream).ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  for (std::int64_t t = 0; t < kRows; ++t) {
    ASSERT_EQ(args.out.f32(t)[kColumns - 1], -static_cast<float>(kChosen * t)) << t;
    ASSERT_EQ(rows(out, kRows).f32(t)[0], static_cast<float>(kChosen * t)) << t;
  }
}

TEST(CudaEngine, TheHighestLogitsComeInOrder) {
  const std::unique_ptr<device::Device> device =
      *device::MakeCudaDevice(testing::FakeCudaPluginWithKernels(), {});
  const auto stream = *device->CreateStream("compute", device::StreamKind::kCompute);
  std::vector<float> logits = {1, 9, 3, 9, 2, 5, 4, 8};
  std::vector<std::int32_t> ids(4);
  std::vector<float> values(4);
  std::vector<std::byte> scratch(kernels::TopLogitsScratchBytes(2, 2));
  kernels::TopLogitsArgs args;
  args.logits = {reinterpret_cast<std::byte*>(logits.data()), tensor::DType::kF32, 2, 4, 4, {}};
  args.k = 2;
  args.scratch = absl::MakeSpan(scratch);
  args.ids = absl::MakeSpan(ids);
  args.values = absl::MakeSpan(values);
  ASSERT_TRUE(kernels::CudaKernels(kernels::CudaPrecision::kExact).top_logits(args, *stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 3, 3, 1}));
  EXPECT_EQ(values, (std::vector<float>{9, 9, 8, 5}));
}

TEST(CudaEngine, WhereAllExpertsFitTheyStay) {
  cli::EngineOptions options = CudaOptions("qwen3_moe");
  const auto all = cli::LoadEngine(options);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_NE((*all)->device_description().find("policy resident"), absl::string_view::npos)
      << (*all)->device_description();
  options.expert_cache_fraction = 0.5;
  const auto some = cli::LoadEngine(options);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_NE((*some)->device_description().find("policy hub"), absl::string_view::npos);
}

TEST(CudaEngine, WhoSetsTheHubsParametersGetsTheHub) {
  cli::EngineOptions options = CudaOptions("mixtral");
  options.given = {"--hub"};
  options.hub_set = "look_ahead=0";
  const absl::StatusOr<std::unique_ptr<cli::EngineBundle>> hub = cli::LoadEngine(options);
  ASSERT_TRUE(hub.ok()) << hub.status();
  EXPECT_NE((*hub)->device_description().find("policy hub"), absl::string_view::npos)
      << (*hub)->device_description();
}

TEST(CudaEngine, StateIsSavedAndPutBack) {
  cli::EngineOptions options = CudaOptions("qwen3_moe");
  options.policy = "resident";
  const auto loaded = cli::LoadEngine(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  api::Engine& engine = (*loaded)->engine();
  std::vector<api::GroupState> from(engine.model_info().cache_groups.size());
  std::vector<api::GroupState> to(from.size());
  for (std::size_t group = 0; group < from.size(); ++group) {
    from[group].blocks = {{0}, {1}};
    to[group].blocks = {{3}, {2}};
  }
  const auto step = [&](std::uint64_t number, std::int64_t position, std::vector<base::TokenId> tokens,
                        const std::vector<api::GroupState>& groups) {
    api::StepPlan plan;
    plan.step = {number};
    api::PlanSpan& span = plan.spans.emplace_back();
    span.start_position = position;
    span.tokens = std::move(tokens);
    span.groups = groups;
    span.logits = api::LogitsMode::kLast;
    span.return_logits = true;
    absl::StatusOr<api::StepResult> result = engine.Step(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->spans.front().logits : std::vector<float>();
  };
  step(1, 0, {5, 9, 2, 7, 11, 3}, from);
  const absl::StatusOr<api::StateSnapshot> saved = engine.Snapshot(from, 6);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_TRUE(engine.Restore(*saved, to).ok());
  EXPECT_EQ(step(2, 6, {4}, from), step(3, 6, {4}, to));
}

api::SamplingParams Draws(float temperature, std::int32_t top_k, float top_p = 1.0F) {
  api::SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.seed = 17;
  return params;
}

struct Sampled {
  std::vector<std::vector<base::TokenId>> tokens;  // of each sequence
  std::size_t bytes_to_host = 0;                   // a step
};

// Sequences of `params` side by side, some steps. `logprobs`: whether the last of them wants them too.
Sampled SampleTogether(cli::EngineOptions options, const std::vector<api::SamplingParams>& params,
                       bool logprobs) {
  constexpr int kSteps = 12;
  options.max_sequences = static_cast<std::int64_t>(params.size());
  Sampled sampled;
  const auto loaded = cli::LoadEngine(options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) {
    return sampled;
  }
  api::Engine& engine = (*loaded)->engine();
  sampled.tokens.assign(params.size(), {});
  const std::size_t before = testing::FakeCudaBytesToHost();
  for (int n = 0; n < kSteps; ++n) {
    api::StepPlan plan;
    plan.step = {static_cast<std::uint64_t>(n)};
    for (std::size_t i = 0; i < params.size(); ++i) {
      api::PlanSpan& span = plan.spans.emplace_back();
      span.sequence = {i};
      span.start_position = n;
      span.tokens = {n == 0 ? kPrompt[i] : sampled.tokens[i].back()};
      span.groups.assign(engine.model_info().cache_groups.size(),
                         {.blocks = {{static_cast<std::int32_t>(i)}}, .slot = -1});
      span.logits = api::LogitsMode::kLast;
      span.sample = params[i];
      span.top_logprobs = logprobs && i + 1 == params.size() ? 3 : -1;
    }
    const absl::StatusOr<api::StepResult> result = engine.Step(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) {
      return sampled;
    }
    for (std::size_t i = 0; i < params.size(); ++i) {
      sampled.tokens[i].push_back(*result->spans[i].token);
    }
  }
  sampled.bytes_to_host = (testing::FakeCudaBytesToHost() - before) / kSteps;
  return sampled;
}

// Rows that need few logits get those few: the same tokens, and no row of logits crosses the link.
TEST(CudaEngine, FewLogitsGiveTheSameTokens) {
  cli::EngineOptions cuda = CudaOptions("qwen3_moe");
  cuda.policy = "resident";
  const std::vector<api::SamplingParams> few = {Draws(0.0F, 0), Draws(1.0F, 5), Draws(1.5F, 64, 0.9F),
                                                Draws(2.0F, 30)};
  std::vector<api::SamplingParams> some = few;
  some.insert(some.begin() + 1, Draws(1.0F, 0));  // all logits of this one are needed
  const Sampled short_rows = SampleTogether(cuda, few, false);
  const Sampled mixed = SampleTogether(cuda, some, false);
  const Sampled scored = SampleTogether(cuda, some, true);
  EXPECT_EQ(short_rows.tokens, SampleTogether(CpuOptions("qwen3_moe"), few, false).tokens);
  EXPECT_EQ(mixed.tokens, SampleTogether(CpuOptions("qwen3_moe"), some, false).tokens);
  EXPECT_EQ(scored.tokens, mixed.tokens);
  const auto loaded = cli::LoadEngine(cuda);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto row = static_cast<std::size_t>((*loaded)->engine().model_info().vocab_size) * sizeof(float);
  EXPECT_EQ(short_rows.bytes_to_host, 0U);
  EXPECT_GE(mixed.bytes_to_host, row);
  EXPECT_LT(mixed.bytes_to_host, 2 * row);
  EXPECT_GE(scored.bytes_to_host, 2 * row);
  std::printf("bytes of copies to the host a step: %zu, %zu, %zu; a row of logits has %zu\n",
              short_rows.bytes_to_host, mixed.bytes_to_host, scored.bytes_to_host, row);
}

// Experts in ordinary memory: slow on a card, and the same bits; the device counts such copies.
TEST(CudaEngine, ExpertsNeedNotBePageLocked) {
  cli::EngineOptions options = CudaOptions("qwen3_moe");
  options.policy = "naive";
  options.page_lock = "off";
  options.expert_cache_fraction = 0.25;
  ExpectSame(Generate(CpuOptions("qwen3_moe")), Generate(options));
  const auto loaded = cli::LoadEngine(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_NE((*loaded)->tiers_description().find("pageable host memory!"), std::string::npos)
      << (*loaded)->tiers_description();
  cli::OfflineSequence sequence((*loaded)->engine());
  ASSERT_TRUE(sequence.Append({kPrompt.data(), 3}).ok());
  EXPECT_GT((*loaded)->engine().offload_totals().unpinned_copies, 0U);
  options.policy = "resident";
  EXPECT_TRUE(absl::IsInvalidArgument(cli::LoadEngine(options).status()));
  options = CpuOptions("qwen3_moe");
  options.page_lock = "off";
  EXPECT_TRUE(absl::IsUnimplemented(cli::LoadEngine(options).status()));
}

// One stream for everything is slow on a card, and the same bits.
TEST(CudaEngine, OneStreamGivesTheSameBits) {
  const Generated want = Generate(CpuOptions("qwen3_moe"));
  for (const char* policy : {"naive", "lru", "hub"}) {
    for (const char* host_lane : {"off", "on"}) {
      SCOPED_TRACE(absl::StrCat(policy, ", host lane ", host_lane));
      cli::EngineOptions options = CudaOptions("qwen3_moe");
      options.policy = policy;
      options.host_lane = host_lane;
      options.expert_cache_fraction = 0.25;
      options.make_device = [] {
        return device::MakeCudaDevice(testing::FakeCudaPlugin(), {.one_stream = true});
      };
      ExpectSame(want, Generate(options));
    }
  }
}

// Names for a profiler: step > layer > stage, each closed before its like begins, none between steps.
TEST(CudaEngine, RangesNestAndAreBalanced) {
  for (const char* policy : {"resident", "lru", "hub"}) {
    for (const bool asked : {true, false}) {
      SCOPED_TRACE(absl::StrCat(policy, asked ? ", with ranges" : ""));
      cli::EngineOptions options = CudaOptions("qwen3_moe");
      options.policy = policy;
      options.expert_cache_fraction = policy == std::string("resident") ? -1.0 : 0.25;
      options.make_device = [asked] {
        return device::MakeCudaDevice(testing::FakeCudaPlugin(), {.ranges = asked});
      };
      const auto loaded = cli::LoadEngine(options);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      cli::OfflineSequence sequence((*loaded)->engine());
      testing::TakeFakeCudaRanges();
      std::set<std::string> layers;
      std::set<std::string> stages;
      for (int step = 0; step < 3; ++step) {
        ASSERT_TRUE(sequence.Append({&kPrompt[static_cast<std::size_t>(step)], 1}).ok());
        std::vector<std::string> open;
        for (const std::string& name : testing::TakeFakeCudaRanges()) {
          if (name.empty()) {
            ASSERT_FALSE(open.empty());
            open.pop_back();
            continue;
          }
          ASSERT_EQ(open.empty(), name.starts_with("step ")) << name;
          ASSERT_TRUE(open.size() < 2 || open[1].starts_with("layer ")) << name;
          open.push_back(name);
          ASSERT_LE(open.size(), 3U);
          (name.starts_with("layer ") ? layers : stages).insert(name);
        }
        EXPECT_TRUE(open.empty());
      }
      EXPECT_EQ(layers.size(),
                asked ? static_cast<std::size_t>((*loaded)->engine().model_info().num_layers) : 0U);
      for (const char* stage : {"embed", "attention", "gate", "head"}) {
        EXPECT_EQ(stages.count(stage), asked ? 1U : 0U) << stage;
      }
    }
  }
}

// What a poisoned context leaves: an engine that says that it is at an end.
TEST(CudaEngine, APoisonedDeviceEndsTheEngine) {
  cli::EngineOptions options = CudaOptions("qwen3_moe");
  options.policy = "resident";
  const auto loaded = cli::LoadEngine(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE((*loaded)->engine().health().ok());
  cli::OfflineSequence sequence((*loaded)->engine());
  ASSERT_TRUE(sequence.Append({kPrompt.data(), 3}).ok());
  testing::FailFakeCuda(700);
  const absl::Status failed = sequence.Append({kPrompt.data(), 3});
  testing::FailFakeCuda(0);
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_TRUE(absl::IsInternal((*loaded)->engine().health()));
  EXPECT_TRUE(absl::IsInternal(sequence.Append({kPrompt.data(), 3})));
}

TEST(CudaEngine, AskedForAndNotThereIsOneLine) {
  cli::EngineOptions options = CpuOptions("qwen3_moe");
  options.device = "cuda";
  options.cuda_plugin = "/nowhere/libcomoe_cuda.so";
  const absl::Status status = cli::LoadEngine(options).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace comoe
