#include "server/status_conversion.h"

#include <string>

#include "engine/tokenizer/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "server/error_details.h"

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
  EXPECT_LT(cut.size(), 1100U);
  EXPECT_TRUE(tokenizer::IsValidUtf8(cut));
}

google::rpc::Status Details(const absl::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(ToGrpcStatus(status).error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.code()));
  EXPECT_EQ(details.message(), ToGrpcStatus(status).error_message());
  return details;
}

// Absent: a default one.
template <typename Message>
Message DetailOf(const absl::Status& status) {
  Message message;
  const google::rpc::Status details = Details(status);
  for (const google::protobuf::Any& any : details.details()) {
    if (any.Is<Message>()) {
      any.UnpackTo(&message);
    }
  }
  return message;
}

TEST(ErrorDetails, AWrongFieldIsNamed) {
  const absl::Status status = InvalidField("sampling.top_p", "is 7: it lies in (0, 1]");
  EXPECT_EQ(status.message(), "sampling.top_p is 7: it lies in (0, 1]");
  const auto bad = DetailOf<google::rpc::BadRequest>(PrefixField(status, "request."));
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "request.sampling.top_p");
  EXPECT_EQ(bad.field_violations(0).description(), "is 7: it lies in (0, 1]");
  EXPECT_EQ(PrefixField(status, "request.").message(), "request.sampling.top_p is 7: it lies in (0, 1]");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status).reason(), "INVALID_ARGUMENT");
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status).has_retry_delay());
  const absl::Status other = absl::NotFoundError("no such model");
  EXPECT_EQ(PrefixField(other, "request."), other);
}

TEST(ErrorDetails, WhatMayWorkLaterSaysWhen) {
  for (const absl::Status& status : {absl::UnavailableError("x"), absl::ResourceExhaustedError("x")}) {
    EXPECT_EQ(DetailOf<google::rpc::RetryInfo>(status).retry_delay().seconds(), 1);
    EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status).domain(), "comoe");
  }
  const absl::Status large = AnswerTooLarge("the answer", 10, 5);
  EXPECT_EQ(large.message(), "the answer has 10 bytes: this server answers with 5 at most");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(large).reason(), "ANSWER_TOO_LARGE");
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(large).has_retry_delay());
}

// gRPC percent-encodes the message and base64-encodes the details; 8 KiB is what clients take.
TEST(ErrorDetails, AllOfItFitsIntoHeaders) {
  std::string text;
  while (text.size() < 100000) {
    text += "\xE2\x82\xAC";
  }
  const grpc::Status status = ToGrpcStatus(WithReason(InvalidField(text, text), "REASON"));
  EXPECT_LT(status.error_message().size() * 3 + status.error_details().size() * 4 / 3, 7000U);
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
  EXPECT_EQ(code(Reason::kStopString), absl::StatusCode::kOk);
  EXPECT_EQ(code(Reason::kTimeLimit), absl::StatusCode::kOk);
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
