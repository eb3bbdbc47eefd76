#include "server/validation.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/error_details.h"

namespace comoe::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ValidationTest : public ::testing::Test {
 protected:
  ValidationTest() {
    model_.name = "demo";
    model_.vocab_size = 100;
    model_.eos_token_ids = {0};
    model_.default_sampling.temperature = 0.8F;
    model_.default_sampling.top_p = 0.95F;
  }

  RequestBounds Bounds() const { return {model_, max_positions_, has_tokenizer_, limits_}; }
  static v1::GenerateRequest Good() {
    v1::GenerateRequest request;
    for (std::uint32_t id = 1; id <= 5; ++id) {
      request.mutable_tokens()->add_ids(id);
    }
    return request;
  }
  absl::StatusOr<GenerationSpec> Parse(const v1::GenerateRequest& request) const {
    return ParseGenerateRequest(request, Bounds());
  }

  api::ModelInfo model_;
  std::int64_t max_positions_ = 64;
  bool has_tokenizer_ = true;
  Limits limits_;
};

TEST_F(ValidationTest, AbsentFieldsTakeTheModelsDefaults) {
  const GenerationSpec spec = Parse(Good()).value();
  EXPECT_EQ(spec.request.prompt, (std::vector<base::TokenId>{1, 2, 3, 4, 5}));
  EXPECT_FLOAT_EQ(spec.request.sampling.temperature, 0.8F);
  EXPECT_FLOAT_EQ(spec.request.sampling.top_p, 0.95F);
  EXPECT_EQ(spec.request.stop.max_tokens, limits_.default_max_tokens);
  EXPECT_TRUE(spec.output.return_token_ids);
  EXPECT_TRUE(spec.output.return_text);
  EXPECT_TRUE(spec.output.skip_special_tokens);
  EXPECT_EQ(spec.request.id.size(), 36U);
  // Ids and seeds are drawn.
  const GenerationSpec other = Parse(Good()).value();
  EXPECT_NE(spec.request.id, other.request.id);
  EXPECT_NE(spec.request.sampling.seed, other.request.sampling.seed);
}

TEST_F(ValidationTest, WhatIsGivenIsTaken) {
  v1::GenerateRequest request = Good();
  request.set_request_id("a.B:c-9_");
  request.set_model("demo");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_p(0.5F);
  request.mutable_sampling()->set_top_k(-1);
  request.mutable_sampling()->set_min_p(0.25F);
  request.mutable_sampling()->set_seed(0);
  request.mutable_sampling()->set_n(1);
  request.mutable_sampling()->set_repetition_penalty(1);
  request.mutable_sampling()->set_presence_penalty(0);
  request.mutable_stopping()->set_max_tokens(7);
  request.mutable_stopping()->add_stop_token_ids(99);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_return_token_ids(false);
  request.mutable_output()->set_skip_special_tokens(false);
  const GenerationSpec spec = Parse(request).value();
  EXPECT_EQ(spec.request.id, "a.B:c-9_");
  EXPECT_TRUE(spec.request.sampling.greedy());
  EXPECT_FLOAT_EQ(spec.request.sampling.top_p, 0.5F);
  EXPECT_EQ(spec.request.sampling.top_k, 0);
  EXPECT_FLOAT_EQ(spec.request.sampling.min_p, 0.25F);
  EXPECT_EQ(spec.request.sampling.seed, 0U);
  EXPECT_EQ(spec.request.stop.max_tokens, 7);
  EXPECT_EQ(spec.request.stop.stop_token_ids, (std::vector<base::TokenId>{99}));
  EXPECT_TRUE(spec.request.stop.ignore_eos);
  EXPECT_FALSE(spec.output.return_token_ids);
  EXPECT_FALSE(spec.output.skip_special_tokens);
}

struct BadCase {
  const char* starts_with;  // the field's path
  std::function<void(v1::GenerateRequest&)> change;
};

TEST_F(ValidationTest, EveryValueOutOfRangeIsNamedByItsPath) {
  const std::vector<BadCase> cases = {
      {"request_id", [](auto& r) { r.set_request_id(std::string(129, 'a')); }},
      {"request_id", [](auto& r) { r.set_request_id("with space"); }},
      {"request_id", [](auto& r) { r.set_request_id("caf\xC3\xA9"); }},
      {"prompt", [](auto& r) { r.clear_prompt(); }},
      {"the prompt is empty", [](auto& r) { r.mutable_tokens()->clear_ids(); }},
      {"tokens.ids[5]", [](auto& r) { r.mutable_tokens()->add_ids(100); }},
      {"tokens.ids[5]", [](auto& r) { r.mutable_tokens()->add_ids(0xFFFFFFFF); }},
      {"the prompt has 64 tokens", [](auto& r) { r.mutable_tokens()->mutable_ids()->Resize(64, 1); }},
      {"text", [](auto& r) { r.set_text(std::string(std::size_t{4} << 20, 'a') + "b"); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(kNan); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(kInfinity); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-0.1F); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(2.1F); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(1.01F); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(kNan); }},
      {"sampling.top_k", [](auto& r) { r.mutable_sampling()->set_top_k(-2); }},
      {"sampling.top_k", [](auto& r) { r.mutable_sampling()->set_top_k(101); }},
      {"sampling.min_p", [](auto& r) { r.mutable_sampling()->set_min_p(-1); }},
      {"sampling.min_p", [](auto& r) { r.mutable_sampling()->set_min_p(kNan); }},
      {"sampling.repetition_penalty", [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.repetition_penalty", [](auto& r) { r.mutable_sampling()->set_repetition_penalty(kNan); }},
      {"sampling.presence_penalty", [](auto& r) { r.mutable_sampling()->set_presence_penalty(-3); }},
      {"sampling.frequency_penalty", [](auto& r) { r.mutable_sampling()->set_frequency_penalty(kNan); }},
      {"sampling.logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[100] = 1; }},
      {"sampling.logit_bias[3]", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[3] = kNan; }},
      {"sampling.n", [](auto& r) { r.mutable_sampling()->set_n(0); }},
      {"stopping.stop[0]", [](auto& r) { r.mutable_stopping()->add_stop("\xC3"); }},
      {"stopping.min_tokens", [](auto& r) { r.mutable_stopping()->set_min_tokens(257); }},
      {"stopping.time_limit",
       [](auto& r) { r.mutable_stopping()->mutable_time_limit()->set_nanos(1000000000); }},
      {"output.echo_prompt",
       [](auto& r) {
         r.mutable_output()->set_echo_prompt(true);
         r.mutable_output()->set_return_text(false);
       }},
      {"stopping.max_tokens", [](auto& r) { r.mutable_stopping()->set_max_tokens(0); }},
      {"stopping.min_tokens",
       [](auto& r) {
         r.mutable_stopping()->set_max_tokens(1);
         r.mutable_stopping()->set_min_tokens(2);
       }},
      {"stopping.stop",
       [](auto& r) {
         for (int i = 0; i < 1000; ++i) {
           r.mutable_stopping()->add_stop(std::string(2, 'x'));
         }
       }},
      {"stopping.stop[0]", [](auto& r) { r.mutable_stopping()->add_stop(); }},
      {"stopping.stop[0]", [](auto& r) { r.mutable_stopping()->add_stop(std::string(257, 'x')); }},
      {"stopping.stop_token_ids",
       [](auto& r) { r.mutable_stopping()->mutable_stop_token_ids()->Resize(129, 1); }},
      {"stopping.stop_token_ids[0]", [](auto& r) { r.mutable_stopping()->add_stop_token_ids(100); }},
      {"stopping.time_limit", [](auto& r) { r.mutable_stopping()->mutable_time_limit()->set_seconds(-1); }},
      {"stopping.time_limit", [](auto& r) { r.mutable_stopping()->mutable_time_limit(); }},
      {"output.logprobs", [](auto& r) { r.mutable_output()->set_logprobs(21); }},
      {"output.prompt_logprobs", [](auto& r) { r.mutable_output()->set_prompt_logprobs(21); }},
      {"priority", [](auto& r) { r.set_priority(101); }},
      {"cache_salt", [](auto& r) { r.set_cache_salt(std::string(65, 'x')); }},
      {"structured", [](auto& r) { r.mutable_structured(); }},
  };
  for (const BadCase& bad : cases) {
    v1::GenerateRequest request = Good();
    bad.change(request);
    const absl::Status status = Parse(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.starts_with << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(bad.starts_with));
    EXPECT_NE(FieldOf(status), "") << status;
  }
}

TEST_F(ValidationTest, WhatIsNotBuiltIsRefusedByName) {
  const std::vector<BadCase> cases = {
      {"sampling.n", [](auto& r) { r.mutable_sampling()->set_n(9); }},
      {"structured", [](auto& r) { r.mutable_structured()->set_json_object(true); }},
      {"lora_adapter", [](auto& r) { r.set_lora_adapter("mine"); }},
  };
  for (const BadCase& bad : cases) {
    v1::GenerateRequest request = Good();
    bad.change(request);
    const absl::Status status = Parse(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << bad.starts_with << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(bad.starts_with));
    EXPECT_THAT(std::string(status.message()), HasSubstr("not supported"));
    EXPECT_EQ(FieldOf(status), bad.starts_with);
  }
  v1::GenerateRequest request = Good();
  request.mutable_sampling()->set_n(9);
  EXPECT_THAT(std::string(Parse(request).status().message()), HasSubstr("more than 8"));
}

TEST_F(ValidationTest, EverySettingReachesTheScheduler) {
  v1::GenerateRequest request = Good();
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_repetition_penalty(1.25F);
  sampling.set_presence_penalty(-0.5F);
  sampling.set_frequency_penalty(0.5F);
  for (const std::uint32_t id : {70U, 3U, 42U}) {
    (*sampling.mutable_logit_bias())[id] = static_cast<float>(id);
  }
  sampling.set_n(8);
  request.set_priority(-100);
  request.set_cache_salt("salt");
  v1::StoppingParams& stopping = *request.mutable_stopping();
  stopping.set_max_tokens(10);
  stopping.set_min_tokens(10);
  stopping.add_stop("end");
  stopping.mutable_time_limit()->set_nanos(1);
  request.mutable_output()->set_logprobs(20);
  request.mutable_output()->set_prompt_logprobs(3);
  request.mutable_output()->set_truncate_prompt_tokens(2);
  request.mutable_output()->set_echo_prompt(true);
  const GenerationSpec spec = Parse(request).value();
  EXPECT_EQ(spec.request.sampling.repetition_penalty, 1.25F);
  EXPECT_EQ(spec.request.sampling.presence_penalty, -0.5F);
  EXPECT_EQ(spec.request.sampling.frequency_penalty, 0.5F);
  std::vector<base::TokenId> ids;
  for (const api::LogitBias& bias : spec.request.sampling.logit_bias) {
    ids.push_back(bias.id);
    EXPECT_EQ(bias.bias, static_cast<float>(bias.id));
  }
  EXPECT_EQ(ids, (std::vector<base::TokenId>{3, 42, 70}));
  EXPECT_EQ(spec.num_choices, 8);
  EXPECT_EQ(spec.request.stop.min_tokens, 10);
  EXPECT_EQ(spec.stop_strings, std::vector<std::string>{"end"});
  EXPECT_EQ(spec.request.time_limit, absl::Nanoseconds(1));
  EXPECT_TRUE(spec.output.return_logprobs) << "alternatives come with what was chosen";
  EXPECT_EQ(spec.request.top_logprobs, 20);
  EXPECT_EQ(spec.request.prompt_logprobs, 3);
  EXPECT_EQ(spec.request.prompt, (std::vector<base::TokenId>{4, 5})) << "the tail is kept";
  EXPECT_TRUE(spec.output.echo_prompt);
}

TEST_F(ValidationTest, WithoutThemTheyAreOff) {
  const GenerationSpec spec = Parse(Good()).value();
  EXPECT_FALSE(spec.request.sampling.penalises());
  EXPECT_EQ(spec.num_choices, 1);
  EXPECT_EQ(spec.request.stop.min_tokens, 0);
  EXPECT_EQ(spec.request.time_limit, absl::InfiniteDuration());
  EXPECT_EQ(spec.request.prompt_logprobs, -1);
  EXPECT_EQ(spec.request.top_logprobs, -1);
  EXPECT_FALSE(spec.output.return_logprobs);
  EXPECT_EQ(spec.output.min_chunk_tokens, 1);
}

TEST_F(ValidationTest, APrefillOnlyNeedsNoPlaceForAToken) {
  v1::GenerateRequest request = Good();
  request.mutable_tokens()->mutable_ids()->Resize(64, 1);
  EXPECT_FALSE(Parse(request).ok());
  request.mutable_output()->set_prefill_only(true);
  EXPECT_TRUE(Parse(request).value().request.prefill_only);
  request.mutable_stopping()->set_min_tokens(1);
  EXPECT_EQ(FieldOf(Parse(request).status()), "stopping.min_tokens");
  request.clear_stopping();
  request.mutable_sampling()->set_n(2);
  EXPECT_EQ(FieldOf(Parse(request).status()), "sampling.n");
}

TEST_F(ValidationTest, StopStringsNeedAText) {
  has_tokenizer_ = false;
  v1::GenerateRequest request = Good();
  request.mutable_stopping()->add_stop("x");
  EXPECT_EQ(Parse(request).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ValidationTest, StreamOptions) {
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Good();
  request.mutable_stream()->set_include_usage_every_chunk(false);
  request.mutable_stream()->set_min_chunk_tokens(5);
  request.mutable_stream()->mutable_max_chunk_delay()->set_nanos(1000000);
  const GenerationSpec spec = ParseGenerateStreamRequest(request, Bounds()).value();
  EXPECT_FALSE(spec.output.include_usage_every_chunk);
  EXPECT_FALSE(spec.output.include_timing);
  EXPECT_EQ(spec.output.min_chunk_tokens, 5);
  EXPECT_EQ(spec.output.max_chunk_delay, absl::Milliseconds(1));
  request.mutable_stream()->clear_max_chunk_delay();
  EXPECT_EQ(ParseGenerateStreamRequest(request, Bounds()).value().output.max_chunk_delay,
            absl::InfiniteDuration());
  for (const std::uint32_t bad : {0U, 4097U}) {
    request.mutable_stream()->set_min_chunk_tokens(bad);
    const absl::Status status = ParseGenerateStreamRequest(request, Bounds()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(FieldOf(status), "stream.min_chunk_tokens");
  }
  request.mutable_stream()->clear_min_chunk_tokens();
  request.mutable_stream()->mutable_max_chunk_delay()->set_seconds(-1);
  EXPECT_EQ(FieldOf(ParseGenerateStreamRequest(request, Bounds()).status()), "stream.max_chunk_delay");
}

TEST_F(ValidationTest, AStreamsPathsBeginAtItsOwnRequest) {
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Good();
  request.mutable_request()->mutable_sampling()->set_top_p(7);
  const absl::Status status = ParseGenerateStreamRequest(request, Bounds()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(status), "request.sampling.top_p");
  EXPECT_THAT(std::string(status.message()), StartsWith("request.sampling.top_p is 7"));
  request.mutable_request()->mutable_sampling()->clear_top_p();
  request.mutable_request()->set_lora_adapter("mine");
  EXPECT_EQ(FieldOf(ParseGenerateStreamRequest(request, Bounds()).status()), "request.lora_adapter");
}

TEST_F(ValidationTest, AnotherModelIsNotFoundAndTheServedOneNamed) {
  v1::GenerateRequest request = Good();
  request.set_model("other");
  const absl::Status status = Parse(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'demo' is"));
}

TEST_F(ValidationTest, WithoutATokenizerThereIsNoText) {
  has_tokenizer_ = false;
  EXPECT_FALSE(Parse(Good()).value().output.return_text);
  v1::GenerateRequest request = Good();
  request.mutable_output()->set_return_text(true);
  EXPECT_EQ(Parse(request).status().code(), absl::StatusCode::kFailedPrecondition);
  v1::GenerateRequest text;
  text.set_text("hello");
  EXPECT_EQ(Parse(text).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ValidationTest, ThePromptLeavesRoomForOneToken) {
  GenerationSpec spec;
  EXPECT_TRUE(SetPrompt(std::vector<base::TokenId>(63, 1), Bounds(), &spec).ok());
  EXPECT_EQ(SetPrompt(std::vector<base::TokenId>(64, 1), Bounds(), &spec).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SetPrompt({}, Bounds(), &spec).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace comoe::server
