// A widened checkpoint: where zeros, the small tensors and filler lie, what norms become, what stays.
#include "engine/checkpoint/widen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/checkpoint/expert_packer.h"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

using tensor::DType;

// A widened fixture and the small one beside it.
struct Widened {
  OpenedCheckpoint small;
  ModelConfig config;
  std::unique_ptr<TensorSource> source;

  std::vector<float> Wide(const std::string& name) const { return *ReadFloats(*source, name); }
  std::vector<float> Small(const std::string& name) const { return *ReadFloats(*small.source, name); }
};

Widened Widen(const std::string& fixture, std::int64_t hidden, std::int64_t intermediate) {
  Widened result;
  auto opened = OpenCheckpoint(FixtureDir(fixture));
  EXPECT_TRUE(opened.ok()) << opened.status();
  result.small = *std::move(opened);
  const auto config = WidenConfig(result.small.config, hidden, intermediate);
  EXPECT_TRUE(config.ok()) << config.status();
  result.config = *config;
  auto source = MakeWidenedSource(*result.small.source, result.small.config, result.config);
  EXPECT_TRUE(source.ok()) << source.status();
  result.source = *std::move(source);
  return result;
}

enum class Outside { kZero, kFiller };

// The small matrix in the upper left corner; beyond its rows and beyond its columns what is asked for.
void ExpectMatrix(const Widened& w, const std::string& name, Outside rows, Outside columns) {
  SCOPED_TRACE(name);
  const std::vector<std::int64_t> from = w.small.source->Find(name)->shape;
  const std::vector<std::int64_t> to = w.source->Find(name)->shape;
  EXPECT_EQ(w.source->Find(name)->dtype, w.small.source->Find(name)->dtype);
  const std::vector<float> small = w.Small(name);
  const std::vector<float> wide = w.Wide(name);
  ASSERT_EQ(wide.size(), static_cast<std::size_t>(to[0] * to[1]));
  double squares = 0;
  std::int64_t filled = 0, zeros = 0;
  for (std::int64_t r = 0; r < to[0]; ++r) {
    for (std::int64_t c = 0; c < to[1]; ++c) {
      const float value = wide[static_cast<std::size_t>(r * to[1] + c)];
      if (r < from[0] && c < from[1]) {
        ASSERT_EQ(value, small[static_cast<std::size_t>(r * from[1] + c)]) << r << " " << c;
      } else if ((r < from[0] ? columns : rows) == Outside::kZero) {
        ASSERT_EQ(value, 0.0F) << r << " " << c;
      } else {
        ++filled;
        zeros += value == 0.0F ? 1 : 0;
        squares += static_cast<double>(value) * value;
        ASSERT_LT(std::fabs(value), 0.08F);
      }
    }
  }
  if (filled > 1000) {
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(filled)), 0.02, 0.002);
    EXPECT_LT(zeros, filled / 100);
  }
}

void ExpectUnchanged(const Widened& w, const std::string& name) {
  EXPECT_EQ(w.source->Find(name)->shape, w.small.source->Find(name)->shape) << name;
  EXPECT_EQ(w.Wide(name), w.Small(name)) << name;
}

void ExpectNorm(const Widened& w, const std::string& name, DType dtype) {
  SCOPED_TRACE(name);
  const auto h = static_cast<std::size_t>(w.small.config.hidden);
  const auto wide_h = static_cast<std::size_t>(w.config.hidden);
  const double scale = std::sqrt(static_cast<double>(h) / static_cast<double>(wide_h));
  EXPECT_EQ(w.source->Find(name)->dtype, dtype);
  const std::vector<float> small = w.Small(name);
  const std::vector<float> wide = w.Wide(name);
  ASSERT_EQ(wide.size(), wide_h);
  for (std::size_t i = 0; i < h; ++i) {
    ASSERT_EQ(wide[i], static_cast<float>(static_cast<double>(small[i]) * scale));
  }
  double sum = 0;
  for (std::size_t i = h; i < wide_h; ++i) {
    sum += std::fabs(wide[i]);
  }
  EXPECT_GT(sum, 0.0);
}

void ExpectWidened(const Widened& w, DType norm_dtype) {
  const auto report = CheckTensors(w.config, *w.source);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->unexpected.empty());
  EXPECT_EQ(w.source->Names(), w.small.source->Names());
  EXPECT_DOUBLE_EQ(w.config.norm_epsilon, w.small.config.norm_epsilon *
                                              static_cast<double>(w.small.config.hidden) /
                                              static_cast<double>(w.config.hidden));
  VisitExpectedTensors(w.config, [&](const ExpectedTensor& tensor) {
    switch (tensor.role) {
      case WeightRole::kEmbedding:
      case WeightRole::kOutput:
      case WeightRole::kSharedDown:
      case WeightRole::kDenseDown:
        ExpectMatrix(w, tensor.name, Outside::kZero, Outside::kZero);
        break;
      case WeightRole::kExpertGate:
      case WeightRole::kExpertDown:
        ExpectMatrix(w, tensor.name, Outside::kZero, Outside::kFiller);
        break;
      case WeightRole::kInputNorm:
      case WeightRole::kPostAttentionNorm:
      case WeightRole::kFinalNorm:
        ExpectNorm(w, tensor.name, norm_dtype);
        break;
      case WeightRole::kQueryNorm:
      case WeightRole::kKeyNorm:
      case WeightRole::kQueryBias:
      case WeightRole::kKeyBias:
      case WeightRole::kValueBias:
        ExpectUnchanged(w, tensor.name);
        break;
      default:
        ExpectMatrix(w, tensor.name, Outside::kFiller, Outside::kFiller);
    }
    return !::testing::Test::HasFatalFailure();
  });
}

TEST(Widen, EveryRoleByAPowerOfFour) {
  ExpectWidened(Widen("qwen3_moe", 256, 80), DType::kBf16);
  ExpectWidened(Widen("qwen2_moe_swa_step2", 1024, 48), DType::kBf16);
  ExpectWidened(Widen("olmoe_clip_f32", 256, 100), DType::kF32);
}

TEST(Widen, EveryRoleByOtherFactors) {
  ExpectWidened(Widen("mixtral", 100, 97), DType::kF32);
  ExpectWidened(Widen("qwen3_moe_tied", 128, 64), DType::kF32);
  ExpectWidened(Widen("mixtral_f16", 256, 96), DType::kF32);  // F16 has no exponents to spare
}

TEST(Widen, SameSizeIsTheSameCheckpoint) {
  const Widened w = Widen("qwen2_moe", 64, 48);
  for (const std::string& name : w.source->Names()) {
    ExpectUnchanged(w, name);
  }
  EXPECT_DOUBLE_EQ(w.config.norm_epsilon, w.small.config.norm_epsilon);
}

TEST(Widen, HeadDimStaysWhatItWas) {
  const Widened w = Widen("mixtral", 256, 96);  // its config leaves head_dim to hidden / heads
  EXPECT_EQ(w.config.head_dim, 16);
  EXPECT_EQ(w.source->Find("model.layers.0.self_attn.q_proj.weight")->shape,
            (std::vector<std::int64_t>{64, 256}));
}

TEST(Widen, OutputBiasIsZeroBeyondTheSmallStream) {
  ModelConfig config;
  config.model_type = "qwen3_moe";
  config.vocab_size = 16;
  config.hidden = 8;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 4;
  config.expert_intermediate = 8;
  config.num_experts = 2;
  config.experts_per_token = 1;
  config.qkv_bias = config.output_bias = true;
  config.layers.resize(1);
  const RandomSource small(config, DType::kBf16, 1);
  const auto wide_config = WidenConfig(config, 24, 8);
  ASSERT_TRUE(wide_config.ok());
  const auto wide = MakeWidenedSource(small, config, *wide_config);
  ASSERT_TRUE(wide.ok()) << wide.status();
  const auto bias = ReadFloats(**wide, "model.layers.0.self_attn.o_proj.bias");
  ASSERT_TRUE(bias.ok());
  ASSERT_EQ(bias->size(), 24U);
  EXPECT_NE((*bias)[7], 0.0F);
  for (std::size_t i = 8; i < 24; ++i) {
    EXPECT_EQ((*bias)[i], 0.0F);
  }
}

TEST(Widen, FillerDependsOnNameAndIndexOnly) {
  const Widened a = Widen("mixtral", 128, 128);
  const Widened b = Widen("mixtral", 128, 128);
  const std::string up0 = "model.layers.0.block_sparse_moe.experts.0.w3.weight";
  const std::string up1 = "model.layers.0.block_sparse_moe.experts.1.w3.weight";
  EXPECT_EQ(a.Wide(up0), b.Wide(up0));
  EXPECT_NE(a.Wide(up0)[127], a.Wide(up1)[127]);
}

TEST(Widen, OwnsItsSourceWhenGivenIt) {
  auto opened = OpenCheckpoint(FixtureDir("olmoe"));
  ASSERT_TRUE(opened.ok());
  const auto config = WidenConfig(opened->config, 128, 64);
  ASSERT_TRUE(config.ok());
  const auto wide = MakeWidenedSource(std::move(opened->source), opened->config, *config);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_TRUE(CheckTensors(*config, **wide).ok());
  EXPECT_TRUE(ReadFloats(**wide, "model.norm.weight").ok());
}

TEST(Widen, RefusesToShrinkOrToGrowWithoutBound) {
  const auto opened = OpenCheckpoint(FixtureDir("olmoe"));
  ASSERT_TRUE(opened.ok());
  EXPECT_FALSE(WidenConfig(opened->config, 63, 48).ok());
  EXPECT_FALSE(WidenConfig(opened->config, 64, 47).ok());
  EXPECT_FALSE(WidenConfig(opened->config, std::int64_t{1} << 40, 48).ok());
  EXPECT_FALSE(WidenConfig(opened->config, 64, std::int64_t{1} << 40).ok());
}

}  // namespace
}  // namespace comoe::checkpoint
