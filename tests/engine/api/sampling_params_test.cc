#include "engine/api/sampling_params.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::api {
namespace {

constexpr std::int32_t kVocab = 2000;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct ParamsCase {
  std::string name;
  std::function<void(SamplingParams&)> change;
  std::string message;  // empty: accepted
};

class SamplingParamsTest : public ::testing::TestWithParam<ParamsCase> {};

TEST_P(SamplingParamsTest, Validates) {
  SamplingParams params;
  GetParam().change(params);
  const absl::Status status = ValidateSamplingParams(params, kVocab);
  if (GetParam().message.empty()) {
    EXPECT_TRUE(status.ok()) << status;
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(GetParam().message));
  }
}

std::vector<LogitBias> Biases(std::size_t count) {
  std::vector<LogitBias> biases;
  for (std::size_t i = 0; i < count; ++i) {
    biases.push_back({static_cast<base::TokenId>(i), 1.0F});
  }
  return biases;
}

INSTANTIATE_TEST_SUITE_P(
    All, SamplingParamsTest,
    ::testing::Values(
        ParamsCase{"Defaults", [](SamplingParams&) {}, ""},
        ParamsCase{"LowestOfAll",
                   [](SamplingParams& p) {
                     p.temperature = 0.0F;
                     p.top_p = p.repetition_penalty = std::numeric_limits<float>::denorm_min();
                     p.presence_penalty = p.frequency_penalty = -2.0F;
                     p.logit_bias = {{0, -100.0F}};
                   },
                   ""},
        ParamsCase{"HighestOfAll",
                   [](SamplingParams& p) {
                     p.temperature = p.repetition_penalty = p.presence_penalty = p.frequency_penalty = 2.0F;
                     p.top_k = kVocab;
                     p.min_p = 1.0F;
                     p.logit_bias = {{kVocab - 1, 100.0F}};
                   },
                   ""},
        ParamsCase{"Temperature", [](SamplingParams& p) { p.temperature = 2.1F; }, "temperature is 2.1"},
        ParamsCase{"TopP", [](SamplingParams& p) { p.top_p = 0.0F; }, "top_p is 0"},
        ParamsCase{"TopK", [](SamplingParams& p) { p.top_k = -1; }, "top_k is -1"},
        ParamsCase{"MinP", [](SamplingParams& p) { p.min_p = kNaN; }, "min_p is nan"},
        ParamsCase{"RepetitionZero", [](SamplingParams& p) { p.repetition_penalty = 0.0F; },
                   "repetition_penalty is 0"},
        ParamsCase{"RepetitionHigh", [](SamplingParams& p) { p.repetition_penalty = 2.5F; },
                   "repetition_penalty is 2.5"},
        ParamsCase{"RepetitionNaN", [](SamplingParams& p) { p.repetition_penalty = kNaN; },
                   "repetition_penalty is nan"},
        ParamsCase{"Presence", [](SamplingParams& p) { p.presence_penalty = -2.5F; },
                   "presence_penalty is -2.5"},
        ParamsCase{"PresenceNaN", [](SamplingParams& p) { p.presence_penalty = kNaN; },
                   "presence_penalty is nan"},
        ParamsCase{"Frequency", [](SamplingParams& p) { p.frequency_penalty = 3.0F; },
                   "frequency_penalty is 3"},
        ParamsCase{"FrequencyNaN", [](SamplingParams& p) { p.frequency_penalty = kNaN; },
                   "frequency_penalty is nan"},
        ParamsCase{"BiasHigh",
                   [](SamplingParams& p) {
                     p.logit_bias = {{3, 101.0F}};
                   },
                   "logit_bias of token 3 is 101"},
        ParamsCase{"BiasNaN",
                   [](SamplingParams& p) {
                     p.logit_bias = {{3, kNaN}};
                   },
                   "token 3 is nan"},
        ParamsCase{"BiasOutside",
                   [](SamplingParams& p) {
                     p.logit_bias = {{kVocab, 1.0F}};
                   },
                   "token 2000"},
        ParamsCase{"BiasNegativeId",
                   [](SamplingParams& p) {
                     p.logit_bias = {{-1, 1.0F}};
                   },
                   "token -1"},
        ParamsCase{"BiasTwice",
                   [](SamplingParams& p) {
                     p.logit_bias = {{3, 1.0F}, {3, 1.0F}};
                   },
                   "token 3 twice"},
        ParamsCase{"BiasMost", [](SamplingParams& p) { p.logit_bias = Biases(kMaxLogitBiases); }, ""},
        ParamsCase{"BiasTooMany", [](SamplingParams& p) { p.logit_bias = Biases(kMaxLogitBiases + 1); },
                   "has 1025 tokens"}),
    [](const ::testing::TestParamInfo<ParamsCase>& tested) { return tested.param.name; });

}  // namespace
}  // namespace comoe::api
