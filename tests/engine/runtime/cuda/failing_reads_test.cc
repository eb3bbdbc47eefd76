// Experts that lie in a file, on a CUDA device (the fake plugin): what a step says when the file fails it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "engine/device/cuda/cuda_device.h"
#include "gtest/gtest.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_cuda_kernels.h"

namespace comoe {
namespace {

constexpr int kPromptTokens = 20;
constexpr int kSteps = 24;

cli::EngineOptions Options(const std::string& device) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  cli::EngineOptions options;
  options.model = absl::StrCat(root != nullptr ? root : ".", "/tests/fixtures/checkpoints/qwen3_moe");
  options.device = device;
  options.threads = 1;
  options.kernels = "ref";
  options.quiet = true;
  options.max_batch_tokens = 32;
  options.kv_bytes = "4MiB";
  return options;
}

// A prompt, then one token a step. A step that fails leaves the sequence where it was.
class Sequence {
 public:
  explicit Sequence(api::Engine& engine) : engine_(engine) {}

  absl::StatusOr<std::vector<float>> Step() {
    const int count = position_ == 0 ? kPromptTokens : 1;
    api::StepPlan plan;
    plan.step = {step_++};
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = {1};
    span.start_position = position_;
    for (int i = 0; i < count; ++i) {
      const std::int64_t at = position_ + i;
      span.tokens.push_back(static_cast<base::TokenId>((at * at * 3 + at * 11 + 5) % 300));
    }
    for (const api::CacheGroup& group : engine_.model_info().cache_groups) {
      api::GroupState& state = span.groups.emplace_back();
      for (std::int32_t b = 0; b * group.block_tokens < kPromptTokens + kSteps; ++b) {
        state.blocks.push_back({b});
      }
    }
    span.logits = api::LogitsMode::kLast;
    span.return_logits = true;
    absl::StatusOr<api::StepResult> result = engine_.Step(plan);
    if (!result.ok()) {
      return result.status();
    }
    if (!result->spans[0].status.ok()) {
      return result->spans[0].status;
    }
    position_ += count;
    return std::move(result->spans[0].logits);
  }

 private:
  api::Engine& engine_;
  std::uint64_t step_ = 0;
  std::int64_t position_ = 0;
};

// The expert file, cut in half and mended under the engine's hands.
class ExpertFile {
 public:
  explicit ExpertFile(std::string path) : path_(std::move(path)) {
    std::ifstream in(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  void Break() const { ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(bytes_.size() / 2)), 0); }
  void Mend() const {
    std::fstream out(path_, std::ios::binary | std::ios::in | std::ios::out);
    out.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    ASSERT_TRUE(out.flush().good());
  }

 private:
  const std::string path_;
  std::string bytes_;
};

// Whatever is read too late for anybody to wait for it: the step says so, and none says that all went well
// with wrong numbers. Soon after, with the file whole again, a step gives the CPU's bits.
TEST(CudaFailingReads, NoStepSucceedsWithWrongNumbers) {
  std::vector<std::vector<float>> want;
  {
    const auto cpu = cli::LoadEngine(Options("cpu"));
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    Sequence sequence((*cpu)->engine());
    for (int i = 0; i <= kSteps; ++i) {
      want.push_back(*sequence.Step());
    }
  }
  const std::string path = absl::StrCat(::testing::TempDir(), "/failing_reads_", ::getpid(), ".bin");
  int failed = 0;
  for (const char* policy : {"naive", "lru", "simple", "hub"}) {
    for (const char* lane : {"off", "on"}) {
      SCOPED_TRACE(absl::StrCat(policy, ", host lane ", lane));
      cli::EngineOptions options = Options("cuda");
      options.device_kernels = &testing::FakeCudaKernels();
      options.make_device = [] { return device::MakeCudaDevice(testing::FakeCudaPlugin(), {}); };
      options.policy = policy;
      options.host_lane = lane;
      options.expert_cache_fraction = 0.25;
      options.pinned_bytes = "64KiB";
      options.expert_file = path;
      const auto loaded = cli::LoadEngine(options);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      const ExpertFile file(path);
      Sequence sequence((*loaded)->engine());
      for (int i = 0; i <= kSteps; ++i) {
        const bool breaks = i % 3 == 2;
        if (breaks) {
          file.Break();
        }
        absl::StatusOr<std::vector<float>> logits = sequence.Step();
        if (breaks) {
          file.Mend();
        }
        // A guess that met the broken file may still be on its way when the next step needs it.
        EXPECT_TRUE(logits.ok() || breaks || i % 3 == 0) << logits.status();
        for (int tries = 0; !logits.ok() && tries < 3; ++tries) {
          ++failed;
          logits = sequence.Step();
        }
        ASSERT_TRUE(logits.ok()) << logits.status();
        EXPECT_EQ(*logits, want[static_cast<std::size_t>(i)]) << "step " << i;
      }
      EXPECT_TRUE((*loaded)->engine().health().ok());
    }
  }
  std::printf("failed steps: %d\n", failed);
  EXPECT_GT(failed, 8);  // of 64 chances; else this shows little
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace comoe
