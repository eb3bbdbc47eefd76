// Readers that do not read: how far they may fall behind, and that none holds an RPC open.
#include <atomic>
#include <string>
#include <thread>

#include "tests/server/generation_fixture.h"

namespace comoe::server {
namespace {

class ReaderTest : public GenerationTest {};

TEST_F(ReaderTest, AnEndThatIsNotReadIsCutOff) {
  limits_.stream_stall_timeout = absl::Milliseconds(50);
  const v1::GenerateStreamRequest request = Request(10);
  FakeStream stream;
  stream.HoldEnd();
  const auto generation = Start(request, stream);
  EXPECT_TRUE(stream.WaitEnd().ok());
  EXPECT_FALSE(generation->output_done());
  EXPECT_TRUE(Eventually([&] { return stream.abandoned(); }));
  EXPECT_TRUE(Eventually([&] { return generation->output_done(); }));
  EXPECT_EQ(Requests("OK", "max_tokens"), 1) << "it ended once";
}

TEST_F(ReaderTest, AnAnswerThatIsNotReadIsCutOff) {
  limits_.stream_stall_timeout = absl::Milliseconds(50);
  const v1::GenerateStreamRequest request = Request(10);
  FakeUnary unary;
  unary.end_held_ = true;
  const auto generation = StartUnary(request, unary);
  EXPECT_TRUE(unary.WaitEnd().ok());
  EXPECT_TRUE(Eventually([&] { return unary.abandoned(); }));
  EXPECT_TRUE(Eventually([&] { return generation->output_done(); }));
}

TEST_F(ReaderTest, AnEndThatIsReadIsLeftAlone) {
  limits_.stream_stall_timeout = absl::Milliseconds(1);
  const v1::GenerateStreamRequest request = Request(10);
  FakeUnary unary;
  const auto generation = StartUnary(request, unary);
  EXPECT_TRUE(unary.WaitEnd().ok());
  EXPECT_TRUE(generation->output_done());
  absl::SleepFor(OutputThreads::kTick + absl::Milliseconds(50));
  EXPECT_FALSE(unary.abandoned());
}

TEST_F(ReaderTest, OfAllStreamsTheOneFurthestBehindIsEnded) {
  limits_.max_total_backlog_tokens = 100;
  // One after the other: the scheduler runs one at a time.
  const v1::GenerateStreamRequest little = Request(40);
  FakeStream first;
  first.Hold(true);
  const auto a = Start(little, first);
  ASSERT_TRUE(Eventually([&] { return sink_.Value("stream_backlog_tokens") == 40; }));
  const v1::GenerateStreamRequest much = Request(90);
  FakeStream second;
  second.Hold(true);
  const auto b = Start(much, second);
  EXPECT_EQ(second.WaitEnd().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(sink_.Value("stream_aborts_total{reason=\"slow_consumer\"}"), 1);
  EXPECT_EQ(sink_.Value("stream_backlog_tokens"), 40) << "the first may go on";
  first.Hold(false);
  first.Complete(true);
  EXPECT_TRUE(first.WaitEnd().ok());
  EXPECT_EQ(sink_.Value("stream_backlog_tokens"), 0);
}

TEST(AbandonGate, NothingIsTouchedOnceItIsClosed) {
  AbandonGate gate;
  ASSERT_TRUE(gate.Enter());
  gate.Close();  // by the cancel itself: does not wait
  gate.Leave();
  EXPECT_TRUE(gate.closed());
  EXPECT_FALSE(gate.Enter());
}

TEST(AbandonGate, TheEndWaitsForACancelUnderWay) {
  AbandonGate gate;
  ASSERT_TRUE(gate.Enter());
  std::atomic<bool> left{false};
  std::thread done([&] {
    gate.Close();
    EXPECT_TRUE(left);
  });
  absl::SleepFor(absl::Milliseconds(20));
  left = true;
  gate.Leave();
  done.join();
}

}  // namespace
}  // namespace comoe::server
