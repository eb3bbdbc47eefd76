#include "server/status_conversion.h"

#include <string>

#include "engine/tokenizer/utf8.h"
#include "gtest/gtest.h"

namespace comoe::server {
namespace {

TEST(StatusConversion, EveryCodeComesBackAsItWas) {
  for (int code = 0; code < kNumStatusCodes; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    const grpc::Status converted = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(converted.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(converted), status);
  }
}

TEST(StatusConversion, NamesAreGrpcs) {
  EXPECT_EQ(CodeName(absl::StatusCode::kOk), "OK");
  EXPECT_EQ(CodeName(absl::StatusCode::kResourceExhausted), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(CodeName(absl::StatusCode::kUnauthenticated), "UNAUTHENTICATED");
  EXPECT_EQ(CodeName(static_cast<absl::StatusCode>(99)), "UNKNOWN");
}

TEST(StatusConversion, ALongMessageIsCutBetweenCharacters) {
  std::string text = "x";
  while (text.size() < 10000) {
    text += "\xE2\x82\xAC";
  }
  const std::string cut = ToGrpcStatus(absl::InvalidArgumentError(text)).error_message();
  EXPECT_LT(cut.size(), 2100U);
  EXPECT_TRUE(tokenizer::IsValidUtf8(cut));
}

TEST(StatusConversion, OnlyWholeCompletionsAreOk) {
  using Reason = batching::FinishReason;
  const auto code = [](Reason reason, absl::Status status = absl::OkStatus()) {
    batching::RequestOutcome outcome;
    outcome.reason = reason;
    outcome.status = status;
    return StatusOfOutcome(outcome).code();
  };
  EXPECT_EQ(code(Reason::kStopEos), absl::StatusCode::kOk);
  EXPECT_EQ(code(Reason::kStopToken), absl::StatusCode::kOk);
  EXPECT_EQ(code(Reason::kMaxTokens), absl::StatusCode::kOk);
  EXPECT_EQ(code(Reason::kContextLength), absl::StatusCode::kOk);
  EXPECT_EQ(code(Reason::kAborted), absl::StatusCode::kCancelled);
  EXPECT_EQ(code(Reason::kDeadline), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(code(Reason::kDraining), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(Reason::kError), absl::StatusCode::kInternal);
  EXPECT_EQ(code(Reason::kError, absl::ResourceExhaustedError("memory")),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace comoe::server
