// config.json that lies or asks for what is not built: each gives one error naming file and field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/model_config.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

using Json = nlohmann::json;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

struct Case {
  const char* fixture;
  const char* field;  // set to `value`
  Json value;
  absl::StatusCode code;
  const char* says;  // besides file and field
};

std::vector<Case> Cases() {
  const std::int64_t huge = std::int64_t{1} << 62;
  return {
      {"mixtral", "model_type", "llama", kUnsupported,
       "supported architectures are mixtral, qwen2_moe, qwen3_moe, olmoe"},
      {"mixtral", "model_type", "evil\nname", kUnsupported, "evil\\nname"},
      {"mixtral", "model_type", 7, kInvalid, "a text is needed"},
      {"mixtral", "model_type", nullptr, kInvalid, "missing"},
      {"mixtral", "hidden_act", "gelu", kUnsupported, "silu"},
      {"mixtral", "quantization_config", {{"quant_method", "gptq"}}, kUnsupported, "gptq"},
      {"mixtral", "vocab_size", "320", kInvalid, "whole number"},
      {"mixtral", "vocab_size", 0, kInvalid, "between 1 and"},
      {"mixtral", "vocab_size", nullptr, kInvalid, "missing"},
      {"mixtral", "hidden_size", -64, kInvalid, "between"},
      {"mixtral", "hidden_size", huge, kInvalid, "between"},
      {"mixtral", "hidden_size", 18446744073709551615ULL, kInvalid, "between"},
      {"mixtral", "hidden_size", 64.5, kInvalid, "whole number"},
      {"mixtral", "hidden_size", true, kInvalid, "whole number"},
      {"mixtral", "num_hidden_layers", 0, kInvalid, "between"},
      {"mixtral", "num_hidden_layers", 1000000, kInvalid, "between"},
      {"mixtral", "num_attention_heads", 0, kInvalid, "between"},
      {"mixtral", "num_key_value_heads", 3, kInvalid, "does not divide"},
      {"mixtral", "num_key_value_heads", 8, kInvalid, "does not divide"},
      {"mixtral", "head_dim", 15, kInvalid, "even"},
      {"mixtral", "head_dim", 1 << 20, kInvalid, "between"},
      {"mixtral", "intermediate_size", 0, kInvalid, "between"},
      {"mixtral", "num_local_experts", 0, kInvalid, "between"},
      {"mixtral", "num_local_experts", 1 << 30, kInvalid, "between"},
      {"mixtral", "num_experts_per_tok", 9, kInvalid, "more than the 8 experts"},
      {"mixtral", "num_experts_per_tok", 0, kInvalid, "between"},
      {"mixtral", "max_position_embeddings", -1, kInvalid, "between"},
      {"mixtral", "rms_norm_eps", 0.0, kInvalid, "between"},
      {"mixtral", "rms_norm_eps", "small", kInvalid, "number"},
      {"mixtral", "rms_norm_eps", -1e-5, kInvalid, "between"},
      {"mixtral", "tie_word_embeddings", "yes", kInvalid, "true or false"},
      {"mixtral", "eos_token_id", 320, kInvalid, "between 0 and 319"},
      {"mixtral", "eos_token_id", {2, -1}, kInvalid, "eos_token_id[1]"},
      {"mixtral", "bos_token_id", 4000000000LL, kInvalid, "between"},
      {"mixtral", "attention_bias", true, kUnsupported, "no such option"},
      {"mixtral", "qkv_bias", true, kUnsupported, "no such option"},
      {"mixtral", "clip_qkv", 8.0, kUnsupported, "no such option"},
      {"mixtral", "mlp_bias", true, kUnsupported, "no such option"},
      {"mixtral", "partial_rotary_factor", 0.5, kUnsupported, "only whole heads"},
      {"mixtral", "sliding_window", "8", kInvalid, "whole number"},
      {"mixtral", "sliding_window", -8, kInvalid, "between"},
      {"mixtral", "layer_types", {"full_attention"}, kInvalid, "1 entries for 3 layers"},
      {"mixtral", "rope_scaling", "yarn", kInvalid, "an object or null"},
      {"mixtral", "rope_parameters", {{"rope_type", "dynamic"}}, kUnsupported, "rope_type"},
      {"mixtral", "rope_scaling", {{"type", "longrope"}}, kUnsupported, "default, linear, yarn and llama3"},
      {"mixtral", "rope_scaling", {{"type", 3}}, kInvalid, "a text is needed"},
      {"mixtral", "rope_scaling", {{"type", "linear"}}, kInvalid, "factor"},
      {"mixtral", "rope_scaling", {{"type", "linear"}, {"factor", 0}}, kInvalid, "factor"},
      {"mixtral", "rope_scaling", {{"type", "yarn"}, {"factor", 0.5}}, kInvalid, "factor"},
      {"mixtral", "rope_scaling", {{"type", "llama3"}, {"factor", 8}}, kInvalid, "low_freq_factor"},
      {"mixtral",
       "rope_scaling",
       {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
       kInvalid,
       "high_freq_factor"},
      {"mixtral",
       "rope_parameters",
       {{"full_attention", {{"rope_type", "default"}}}},
       kUnsupported,
       "per kind of layer"},
      {"mixtral", "rope_parameters", {{"rope_theta", 0}}, kInvalid, "rope_theta"},
      {"mixtral", "rope_parameters", {{"rope_theta", 1e300}}, kInvalid, "rope_theta"},
      {"mixtral",
       "rope_parameters",
       {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.25}},
       kUnsupported,
       "partial_rotary_factor"},
      {"qwen2_moe",
       "layer_types",
       {"full_attention", "linear_attention", "full_attention"},
       kUnsupported,
       "layer_types[1]"},
      {"qwen2_moe", "layer_types", 3, kInvalid, "a list is needed"},
      {"qwen2_moe", "shared_expert_intermediate_size", -1, kInvalid, "between"},
      {"qwen2_moe", "decoder_sparse_step", 0, kInvalid, "between"},
      {"qwen2_moe", "decoder_sparse_step", 4, kUnsupported, "no layer with experts"},
      {"qwen3_moe", "mlp_only_layers", {0, 3}, kInvalid, "mlp_only_layers[1]"},
      {"qwen3_moe", "mlp_only_layers", {"0"}, kInvalid, "mlp_only_layers[0]"},
      {"qwen3_moe", "moe_intermediate_size", nullptr, kInvalid, "missing"},
      {"qwen3_moe", "intermediate_size", nullptr, kInvalid, "missing"},  // layer 0 is dense
      {"qwen3_moe", "norm_topk_prob", 1, kInvalid, "true or false"},
      {"qwen3_moe", "num_experts", 16, kInvalid, "two names of one number"},
      {"qwen3_moe", "shared_expert_intermediate_size", 64, kUnsupported, "no shared expert"},
      {"olmoe", "clip_qkv", -1.0, kInvalid, "between"},
      {"olmoe", "clip_qkv", "0.8", kInvalid, "number"},
      {"olmoe", "sliding_window", 16, kUnsupported, "no windows"},
  };
}

TEST(HostileConfig, EachGivesOneErrorNamingFileAndField) {
  for (const Case& c : Cases()) {
    Json json = Json::parse(ReadText(FixtureDir(c.fixture) + "/config.json"));
    json[c.field] = c.value;
    const auto config = ParseModelConfig(json.dump(), "some/config.json");
    const std::string what = std::string(c.field) + " = " + c.value.dump();
    ASSERT_FALSE(config.ok()) << what;
    EXPECT_EQ(config.status().code(), c.code) << what << ": " << config.status();
    const std::string message(config.status().message());
    EXPECT_THAT(message, ::testing::HasSubstr("some/config.json: ")) << what;
    EXPECT_THAT(message, ::testing::HasSubstr(c.field)) << what;
    EXPECT_THAT(message, ::testing::HasSubstr(c.says)) << what;
    EXPECT_EQ(message.find('\n'), std::string::npos) << what;
  }
  EXPECT_GE(Cases().size(), 40U);
}

TEST(HostileConfig, TextThatIsNoConfig) {
  const std::string deep = "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  const std::string nan = R"({"model_type": "mixtral", "rms_norm_eps": NaN})";
  const std::string overflow = R"({"model_type": "mixtral", "rms_norm_eps": 1e999})";
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("42"),
        std::string("{\"a\":\"\xff\"}"), deep, nan, overflow, std::string(20 << 20, ' ')}) {
    const auto config = ParseModelConfig(text, "some/config.json");
    ASSERT_FALSE(config.ok()) << text.substr(0, 60);
    EXPECT_EQ(config.status().code(), kInvalid);
    EXPECT_THAT(std::string(config.status().message()), ::testing::HasSubstr("some/config.json: "));
  }
  EXPECT_THAT(std::string(ParseModelConfig(nan, "c").status().message()),
              ::testing::HasSubstr("rms_norm_eps"));
}

// What is accepted must not overflow later: the largest of everything.
TEST(HostileConfig, ProductOfBoundsIsRefused) {
  Json json = Json::parse(ReadText(FixtureDir("mixtral") + "/config.json"));
  json["num_local_experts"] = 65536;
  json["num_hidden_layers"] = 1024;
  const auto config = ParseModelConfig(json.dump(), "config.json");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), ::testing::HasSubstr("num_hidden_layers"));
}

}  // namespace
}  // namespace comoe::checkpoint
