// config.json of every family and variant, with the values that must come out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/model_config.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

ModelConfig ParseFixture(const std::string& name) {
  const absl::StatusOr<ModelConfig> config =
      ParseModelConfig(ReadText(FixtureDir(name) + "/config.json"), name);
  EXPECT_TRUE(config.ok()) << name << ": " << config.status();
  return config.ok() ? *config : ModelConfig();
}

// The fixture's config with some fields changed; null removes nothing, it sets null.
absl::StatusOr<ModelConfig> ParseChanged(const std::string& fixture,
                                         const std::function<void(Json&)>& change) {
  Json json = Json::parse(ReadText(FixtureDir(fixture) + "/config.json"));
  change(json);
  return ParseModelConfig(json.dump(), "config.json");
}

std::vector<int> Windows(const ModelConfig& config) {
  std::vector<int> windows;
  for (const LayerConfig& layer : config.layers) {
    windows.push_back(static_cast<int>(layer.window_tokens));
  }
  return windows;
}

std::vector<bool> Sparse(const ModelConfig& config) {
  std::vector<bool> sparse;
  for (const LayerConfig& layer : config.layers) {
    sparse.push_back(layer.sparse);
  }
  return sparse;
}

TEST(ModelConfig, Mixtral) {
  const ModelConfig config = ParseFixture("mixtral");
  EXPECT_EQ(config.model_type, "mixtral");
  EXPECT_EQ(config.vocab_size, 320);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);  // null: hidden / heads
  EXPECT_EQ(config.context_length, 512);
  EXPECT_DOUBLE_EQ(config.norm_epsilon, 1e-5);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.output_bias);
  EXPECT_EQ(config.qk_norm, QkNorm::kNone);
  EXPECT_EQ(config.clip_qkv, 0.0);
  EXPECT_EQ(config.expert_intermediate, 96);
  EXPECT_EQ(config.shared_intermediate, 0);
  EXPECT_EQ(config.num_experts, 8);
  EXPECT_EQ(config.experts_per_token, 2);
  EXPECT_TRUE(config.normalize_weights);
  EXPECT_EQ(config.rope.type, RopeConfig::Type::kDefault);
  EXPECT_DOUBLE_EQ(config.rope.theta, 1e6);
  EXPECT_THAT(Windows(config), ElementsAre(0, 0, 0));
  EXPECT_THAT(Sparse(config), ElementsAre(true, true, true));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config.bos_token_id, 1);
}

TEST(ModelConfig, MixtralWindowHoldsForAllLayers) {
  EXPECT_THAT(Windows(ParseFixture("mixtral_swa8")), ElementsAre(8, 8, 8));
  EXPECT_THAT(Windows(ParseFixture("mixtral_f16")), ElementsAre(0, 0, 0));
}

TEST(ModelConfig, Qwen2Moe) {
  const ModelConfig config = ParseFixture("qwen2_moe");
  EXPECT_EQ(config.head_dim, 16);  // absent
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.output_bias);
  EXPECT_EQ(config.shared_intermediate, 96);
  EXPECT_EQ(config.expert_intermediate, 48);
  EXPECT_EQ(config.experts_per_token, 4);
  EXPECT_FALSE(config.normalize_weights);
  EXPECT_THAT(Windows(config), ElementsAre(0, 0, 0));
  EXPECT_THAT(Sparse(config), ElementsAre(true, true, true));
}

TEST(ModelConfig, Qwen2MoeWindowsAndSparseStep) {
  const ModelConfig config = ParseFixture("qwen2_moe_swa_step2");
  EXPECT_THAT(Windows(config), ElementsAre(8, 0, 0, 0));
  EXPECT_THAT(Sparse(config), ElementsAre(false, true, false, true));
  EXPECT_EQ(config.dense_intermediate, 128);
}

TEST(ModelConfig, Qwen2MoeWithoutLayerTypesAlternatesBelowMaxWindowLayers) {
  const auto config = ParseChanged("qwen2_moe_swa_step2", [](Json& json) {
    json.erase("layer_types");
    json["max_window_layers"] = 3;
  });
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(Windows(*config), ElementsAre(8, 0, 8, 0));
  const auto same = ParseChanged("qwen2_moe_swa_step2", [](Json& json) { json.erase("layer_types"); });
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(Windows(*same), ElementsAre(8, 0, 0, 0));  // what the fixture's layer_types say
  const auto unused =
      ParseChanged("qwen2_moe_swa_step2", [](Json& json) { json["use_sliding_window"] = false; });
  ASSERT_TRUE(unused.ok()) << unused.status();
  EXPECT_THAT(Windows(*unused), ElementsAre(0, 0, 0, 0));
}

TEST(ModelConfig, Qwen3Moe) {
  const ModelConfig config = ParseFixture("qwen3_moe");
  EXPECT_EQ(config.head_dim, 32);  // 4 heads of 32 over a hidden size of 64
  EXPECT_EQ(config.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(config.num_experts, 8);  // as num_local_experts
  EXPECT_TRUE(config.normalize_weights);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_THAT(Sparse(config), ElementsAre(false, true, true));  // mlp_only_layers [0]
  EXPECT_EQ(config.dense_intermediate, 128);
  EXPECT_EQ(config.rope.type, RopeConfig::Type::kDefault);
}

TEST(ModelConfig, Qwen3MoeRopeVariants) {
  const ModelConfig linear = ParseFixture("qwen3_moe_linear");
  EXPECT_EQ(linear.rope.type, RopeConfig::Type::kLinear);
  EXPECT_DOUBLE_EQ(linear.rope.factor, 2.5);
  EXPECT_DOUBLE_EQ(linear.rope.theta, 10000.0);

  const ModelConfig llama3 = ParseFixture("qwen3_moe_llama3");
  EXPECT_EQ(llama3.rope.type, RopeConfig::Type::kLlama3);
  EXPECT_DOUBLE_EQ(llama3.rope.factor, 8.0);
  EXPECT_DOUBLE_EQ(llama3.rope.low_freq_factor, 1.0);
  EXPECT_DOUBLE_EQ(llama3.rope.high_freq_factor, 4.0);
  EXPECT_EQ(llama3.rope.original_max_positions, 32);
  EXPECT_DOUBLE_EQ(llama3.rope.theta, 500000.0);

  const ModelConfig yarn = ParseFixture("qwen3_moe_yarn_legacy");
  EXPECT_EQ(yarn.rope.type, RopeConfig::Type::kYarn);
  EXPECT_DOUBLE_EQ(yarn.rope.factor, 8.0);
  EXPECT_DOUBLE_EQ(yarn.rope.beta_fast, 32.0);
  EXPECT_DOUBLE_EQ(yarn.rope.beta_slow, 1.0);
  EXPECT_EQ(yarn.rope.original_max_positions, 64);
  EXPECT_EQ(yarn.rope.attention_factor, 0.0);
  EXPECT_TRUE(yarn.rope.truncate);
  EXPECT_DOUBLE_EQ(yarn.rope.theta, 1e6);

  const ModelConfig tied = ParseFixture("qwen3_moe_tied");  // rope_scaling: null
  EXPECT_TRUE(tied.tied_embeddings);
  EXPECT_FALSE(tied.normalize_weights);
  EXPECT_EQ(tied.rope.type, RopeConfig::Type::kDefault);
  EXPECT_DOUBLE_EQ(tied.rope.theta, 1e6);
}

TEST(ModelConfig, YarnDefaults) {
  const auto config = ParseChanged("qwen3_moe", [](Json& json) {
    json["rope_parameters"] = {{"rope_type", "yarn"},      {"rope_theta", 5e5},
                               {"attention_factor", 1.25}, {"original_max_position_embeddings", 128},
                               {"beta_fast", nullptr},     {"mscale", 0.5},
                               {"mscale_all_dim", 1},      {"truncate", false}};
  });
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_DOUBLE_EQ(config->rope.factor, 4.0);  // max_position_embeddings / original
  EXPECT_DOUBLE_EQ(config->rope.beta_fast, 32.0);
  EXPECT_DOUBLE_EQ(config->rope.attention_factor, 1.25);
  EXPECT_DOUBLE_EQ(config->rope.mscale, 0.5);
  EXPECT_DOUBLE_EQ(config->rope.mscale_all_dim, 1.0);
  EXPECT_FALSE(config->rope.truncate);
  const auto without_original = ParseChanged("qwen3_moe", [](Json& json) {
    json["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4}};
  });
  ASSERT_TRUE(without_original.ok()) << without_original.status();
  EXPECT_EQ(without_original->rope.original_max_positions, 512);
  EXPECT_DOUBLE_EQ(without_original->rope.theta, 10000.0);
}

TEST(ModelConfig, FieldsOfTheConfigItselfReachTheRotarySettings) {
  const auto config = ParseChanged("qwen3_moe_llama3", [](Json& json) {
    json["original_max_position_embeddings"] = 99;
    json["rope_scaling"]["rope_theta"] = 7.5e4;
  });
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.original_max_positions, 99);
  EXPECT_DOUBLE_EQ(config->rope.theta, 7.5e4);
}

TEST(ModelConfig, Qwen3MoeWindowNeedsItsSwitch) {
  const auto off = ParseChanged("qwen3_moe", [](Json& json) { json["sliding_window"] = 4096; });
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_THAT(Windows(*off), ElementsAre(0, 0, 0));
  const auto on = ParseChanged("qwen3_moe", [](Json& json) {
    json["sliding_window"] = 16;
    json["use_sliding_window"] = true;
  });
  ASSERT_TRUE(on.ok()) << on.status();
  EXPECT_THAT(Windows(*on), ElementsAre(16, 16, 16));
}

TEST(ModelConfig, AttentionBiasCoversAllFourProjections) {
  for (const char* fixture : {"qwen3_moe", "olmoe"}) {
    const auto config = ParseChanged(fixture, [](Json& json) { json["attention_bias"] = true; });
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(config->qkv_bias);
    EXPECT_TRUE(config->output_bias);
  }
  const auto without = ParseChanged("qwen2_moe", [](Json& json) { json["qkv_bias"] = false; });
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->qkv_bias);
}

TEST(ModelConfig, Olmoe) {
  const ModelConfig config = ParseFixture("olmoe");
  EXPECT_EQ(config.qk_norm, QkNorm::kFullWidth);
  EXPECT_EQ(config.clip_qkv, 0.0);
  EXPECT_EQ(config.expert_intermediate, 48);
  EXPECT_FALSE(config.normalize_weights);
  EXPECT_DOUBLE_EQ(config.rope.theta, 1e4);
  EXPECT_DOUBLE_EQ(ParseFixture("olmoe_clip_f32").clip_qkv, 0.8);
}

TEST(ModelConfig, TokenIdLists) {
  const auto config = ParseChanged("mixtral", [](Json& json) {
    json["eos_token_id"] = {2, 7, 319};
    json["bos_token_id"] = nullptr;
  });
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 7, 319));
  EXPECT_EQ(config->bos_token_id, -1);
}

TEST(ModelConfig, BothSpellingsOfExpertCountMustAgree) {
  EXPECT_TRUE(ParseChanged("mixtral", [](Json& json) { json["num_experts"] = 8; }).ok());
  EXPECT_FALSE(ParseChanged("mixtral", [](Json& json) { json["num_experts"] = 9; }).ok());
}

TEST(GenerationDefaults, ReadsWhatIsThereAndKeepsDefaults) {
  const auto read = ParseGenerationDefaults(
      R"({"do_sample": true, "temperature": 0.8, "top_p": 0.95, "top_k": 20, "min_p": 0.05,
          "repetition_penalty": 1.1, "eos_token_id": [5, 6]})",
      "g.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->do_sample);
  EXPECT_DOUBLE_EQ(read->temperature, 0.8);
  EXPECT_DOUBLE_EQ(read->top_p, 0.95);
  EXPECT_EQ(read->top_k, 20);
  EXPECT_DOUBLE_EQ(read->min_p, 0.05);
  EXPECT_DOUBLE_EQ(read->repetition_penalty, 1.1);
  EXPECT_THAT(read->eos_token_ids, ElementsAre(5, 6));
  const auto empty = ParseGenerationDefaults("{}", "g.json");
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_FALSE(empty->do_sample);
  EXPECT_DOUBLE_EQ(empty->temperature, 1.0);
  EXPECT_EQ(empty->top_k, 0);
  EXPECT_DOUBLE_EQ(empty->min_p, 0.0);
  EXPECT_DOUBLE_EQ(empty->repetition_penalty, 1.0);
  for (const char* bad : {R"({"temperature": -1})", R"({"top_p": 1.5})", R"({"top_p": "1"})",
                          R"({"top_k": 1.5})", R"({"min_p": 2})", R"({"repetition_penalty": 0})",
                          R"({"do_sample": 1})", "[]", ""}) {
    const auto refused = ParseGenerationDefaults(bad, "g.json");
    EXPECT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("g.json")) << bad;
  }
}

TEST(WithFields, ReplacesWhatWideningChangesAndKeepsTheRest) {
  for (const char* fixture : {"mixtral", "qwen2_moe", "qwen3_moe_yarn_legacy", "olmoe"}) {
    const std::string json = ReadText(FixtureDir(fixture) + "/config.json");
    ModelConfig config = ParseFixture(fixture);
    config.hidden = 256;
    config.expert_intermediate = 200;
    config.norm_epsilon = 2.5e-7;
    const auto changed = WithFields(json, config);
    ASSERT_TRUE(changed.ok()) << changed.status();
    const auto reread = ParseModelConfig(*changed, "config.json");
    ASSERT_TRUE(reread.ok()) << reread.status();
    EXPECT_EQ(reread->hidden, 256);
    EXPECT_EQ(reread->head_dim, config.head_dim);
    EXPECT_EQ(reread->expert_intermediate, 200);
    EXPECT_EQ(reread->dense_intermediate, config.dense_intermediate);
    EXPECT_EQ(reread->shared_intermediate, config.shared_intermediate);
    EXPECT_EQ(reread->norm_epsilon, 2.5e-7);
    EXPECT_EQ(reread->rope.type, config.rope.type);
    EXPECT_EQ(Json::parse(*changed)["architectures"], Json::parse(json)["architectures"]);
  }
  EXPECT_FALSE(WithFields("nonsense", ModelConfig()).ok());
}

}  // namespace
}  // namespace comoe::checkpoint
