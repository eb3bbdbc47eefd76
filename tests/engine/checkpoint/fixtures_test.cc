// Every fixture checkpoint and trained model opens, has the tensors its config asks for, and weighs what it
// says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/checkpoint/expert_packer.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/tensor/dtype.h"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

struct Fixture {
  const char* name;
  tensor::DType dtype;
};
constexpr Fixture kFixtures[] = {
    {"mixtral", tensor::DType::kBf16},
    {"mixtral_swa8", tensor::DType::kBf16},
    {"mixtral_f16", tensor::DType::kF16},
    {"qwen2_moe", tensor::DType::kBf16},
    {"qwen2_moe_swa_step2", tensor::DType::kBf16},
    {"qwen3_moe", tensor::DType::kBf16},
    {"qwen3_moe_linear", tensor::DType::kBf16},
    {"qwen3_moe_llama3", tensor::DType::kBf16},
    {"qwen3_moe_tied", tensor::DType::kBf16},
    {"qwen3_moe_yarn_legacy", tensor::DType::kBf16},
    {"olmoe", tensor::DType::kBf16},
    {"olmoe_clip_f32", tensor::DType::kF32},
};

// Parameters counted in the files equal those that the plan derives from the config.
void ExpectPlanMatchesFiles(const OpenedCheckpoint& opened) {
  std::uint64_t elements = 0;
  for (const std::string& name : opened.source->Names()) {
    const TensorInfo* info = opened.source->Find(name);
    elements += info->bytes / tensor::DTypeBytes(info->dtype);
  }
  const MemoryPlan plan = PlanMemory(opened.config, opened.report.expert_dtype);
  EXPECT_EQ(plan.total_parameters, elements);
  EXPECT_LT(plan.active_parameters, plan.total_parameters);
  const ExpertIndex index = ExpertIndex::Make(opened.config, opened.report.expert_dtype);
  EXPECT_EQ(plan.all_experts_bytes, index.total_bytes());
  EXPECT_EQ(plan.expert_bytes, index.layout().bytes);
  EXPECT_EQ(plan.num_experts, static_cast<std::int64_t>(index.keys().size()));
  EXPECT_EQ(plan.total_bytes, plan.resident_bytes + plan.all_experts_bytes);
}

TEST(Fixtures, AllOpenAndPassTheirChecks) {
  for (const Fixture& fixture : kFixtures) {
    SCOPED_TRACE(fixture.name);
    const auto opened = OpenCheckpoint(FixtureDir(fixture.name));
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->report.expert_dtype, fixture.dtype);
    EXPECT_TRUE(opened->report.unexpected.empty());
    ExpectPlanMatchesFiles(*opened);
  }
}

TEST(Fixtures, TensorBytesAreThoseOfTheFile) {
  const auto opened = OpenCheckpoint(FixtureDir("qwen3_moe_tied"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  // The last tensor of the only shard ends where the file ends.
  const std::string file = ReadText(FixtureDir("qwen3_moe_tied") + "/model.safetensors");
  const TensorInfo* norm = opened->source->Find("model.norm.weight");
  ASSERT_NE(norm, nullptr);
  const auto data = opened->source->Read(*norm);
  ASSERT_TRUE(data.ok());
  ASSERT_EQ(data->bytes.size(), 128U);
  const std::string bytes(reinterpret_cast<const char*>(data->bytes.data()), data->bytes.size());
  EXPECT_EQ(bytes, file.substr(file.size() - 128));
  opened->source->Release(*norm);  // pages come back when they are touched again
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(data->bytes.data()), 128), bytes);
}

TEST(Fixtures, TrainedModels) {
  struct Trained {
    const char* name;
    std::uint64_t parameters;
    std::uint64_t expert_bytes;
    std::int64_t experts;
  };
  for (const Trained& model : {Trained{"moe-32x4-demo", 13'178'112, 256 * 48 * 3 * 2, 256},
                               Trained{"moe-64x2", 61'284'096, 256 * 96 * 3 * 2, 768}}) {
    SCOPED_TRACE(model.name);
    const std::string directory = TrainedModelDir(model.name);
    if (directory.empty()) {
      continue;
    }
    const auto opened = OpenCheckpoint(directory);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(opened->report.unexpected.empty());
    ExpectPlanMatchesFiles(*opened);
    const MemoryPlan plan = PlanMemory(opened->config, tensor::DType::kBf16);
    EXPECT_EQ(plan.total_parameters, model.parameters);
    EXPECT_EQ(plan.expert_bytes, model.expert_bytes);
    EXPECT_EQ(plan.num_experts, model.experts);
    EXPECT_EQ(opened->config.eos_token_ids, std::vector<std::int32_t>{0});
  }
}

TEST(MemoryPlan, CountsByHand) {
  const auto opened = OpenCheckpoint(FixtureDir("qwen2_moe_swa_step2"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const MemoryPlan plan = PlanMemory(opened->config, tensor::DType::kBf16);
  // D 64, H P 64, G P 32, E 8, K 4, F 48, shared 96, dense 128, V 320; layers 1 and 3 of 4 are sparse.
  EXPECT_EQ(plan.num_sparse_layers, 2);
  EXPECT_EQ(plan.expert_parameters, 3U * 64 * 48);
  EXPECT_EQ(plan.expert_bytes, 3U * 64 * 48 * 2);
  EXPECT_EQ(plan.experts_per_token_bytes, 2U * 4 * plan.expert_bytes);
  EXPECT_EQ(plan.total_parameters - plan.active_parameters, 2U * 4 * plan.expert_parameters);
  EXPECT_EQ(plan.embedding_bytes, 320U * 64 * 2);
  EXPECT_EQ(plan.head_bytes, 320U * 64 * 2);
  EXPECT_EQ(plan.attention_bytes, 4U * (128 * 64 + 64 * 64) * 2);
  EXPECT_EQ(plan.router_bytes, 2U * 16 * 64 * 2);                      // 8 experts fill a panel of 16
  EXPECT_EQ(plan.shared_bytes, 2U * (3 * 64 * 96 * 2 + 16 * 64 * 2));  // and so does the one sigmoid gate
  EXPECT_EQ(plan.dense_bytes, 2U * 3 * 64 * 128 * 2);
  EXPECT_EQ(plan.vector_bytes,
            (4U * (64 + 64 + 64 + 32 + 32) + 64) * 4);  // two norms, q k v biases; final norm
  EXPECT_EQ(plan.kv_bytes_per_token, 4U * 2 * 32 * 4);
  EXPECT_EQ(PlanMemory(opened->config, tensor::DType::kBf16, tensor::DType::kF16).kv_bytes_per_token,
            4U * 2 * 32 * 2);
}

TEST(WeightNames, SpellingsOfBothKinds) {
  const auto mixtral = OpenCheckpoint(FixtureDir("mixtral"));
  ASSERT_TRUE(mixtral.ok());
  const WeightNames names(mixtral->config);
  EXPECT_EQ(names.layer(1).router, "model.layers.1.block_sparse_moe.gate.weight");
  EXPECT_EQ(names.Expert({2, 7}).gate, "model.layers.2.block_sparse_moe.experts.7.w1.weight");
  EXPECT_EQ(names.Expert({2, 7}).up, "model.layers.2.block_sparse_moe.experts.7.w3.weight");
  EXPECT_EQ(names.Expert({2, 7}).down, "model.layers.2.block_sparse_moe.experts.7.w2.weight");
  EXPECT_EQ(names.head(), "lm_head.weight");
  EXPECT_TRUE(names.layer(0).query_norm.empty());
  const auto tied = OpenCheckpoint(FixtureDir("qwen3_moe_tied"));
  ASSERT_TRUE(tied.ok());
  const WeightNames qwen(tied->config);
  EXPECT_EQ(qwen.head(), qwen.embedding());
  EXPECT_EQ(qwen.Expert({1, 0}).down, "model.layers.1.mlp.experts.0.down_proj.weight");
  EXPECT_EQ(qwen.layer(0).dense.up, "model.layers.0.mlp.up_proj.weight");
  EXPECT_TRUE(qwen.layer(0).router.empty());
}

}  // namespace
}  // namespace comoe::checkpoint
