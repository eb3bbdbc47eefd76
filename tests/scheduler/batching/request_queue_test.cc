#include "scheduler/batching/request_queue.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::unique_ptr<Sequence> Waiting(std::uint64_t id, absl::Time deadline = absl::InfiniteFuture()) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = base::SequenceId{id};
  sequence->request.deadline = deadline;
  return sequence;
}

std::vector<std::uint64_t> Ids(const std::vector<std::unique_ptr<Sequence>>& sequences) {
  std::vector<std::uint64_t> ids;
  for (const std::unique_ptr<Sequence>& sequence : sequences) {
    ids.push_back(sequence->id.value);
  }
  return ids;
}

TEST(RequestQueueTest, FirstComeFirstServedWithinItsBound) {
  RequestQueue queue(2, 1000);
  EXPECT_EQ(queue.Pop(), nullptr);
  queue.PutBack(Waiting(1));
  EXPECT_TRUE(queue.HasRoom(1, 1));
  queue.PutBack(Waiting(2));
  EXPECT_FALSE(queue.HasRoom(1, 1));
  EXPECT_EQ(queue.Pop()->id.value, 1U);
  queue.PutBack(Waiting(3));
  EXPECT_THAT(Ids(queue.TakeNeverRun()), ElementsAre(2, 3));
  EXPECT_TRUE(queue.empty());
}

TEST(RequestQueueTest, RemovesById) {
  RequestQueue queue(5, 1000);
  for (const std::uint64_t id : {1, 2, 3}) {
    queue.PutBack(Waiting(id));
  }
  EXPECT_EQ(queue.Remove(base::SequenceId{2})->id.value, 2U);
  EXPECT_EQ(queue.Remove(base::SequenceId{2}), nullptr);
  EXPECT_THAT(Ids(queue.TakeNeverRun()), ElementsAre(1, 3));
}

TEST(RequestQueueTest, TakesTheExpiredInOrder) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  RequestQueue queue(9, 1000);
  queue.PutBack(Waiting(1, now + absl::Seconds(1)));
  queue.PutBack(Waiting(2, now));
  queue.PutBack(Waiting(3));
  queue.PutBack(Waiting(4, now - absl::Seconds(1)));
  EXPECT_THAT(Ids(queue.TakeExpired(now)), ElementsAre(2, 4));
  EXPECT_THAT(queue.TakeExpired(now), IsEmpty());
  EXPECT_THAT(Ids(queue.TakeNeverRun()), ElementsAre(1, 3));
}

TEST(RequestQueueTest, ATimeLimitExpiresToo) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  RequestQueue queue(9, 1000);
  queue.PutBack(Waiting(1));
  std::unique_ptr<Sequence> limited = Waiting(2);
  limited->time_limit = now;
  queue.PutBack(std::move(limited));
  EXPECT_THAT(queue.TakeExpired(now - absl::Nanoseconds(1)), IsEmpty());
  EXPECT_THAT(Ids(queue.TakeExpired(now)), ElementsAre(2));
}

std::unique_ptr<Sequence> WithPriority(std::uint64_t id, std::int32_t priority) {
  std::unique_ptr<Sequence> sequence = Waiting(id);
  sequence->request.priority = priority;
  return sequence;
}

TEST(RequestQueueTest, HigherPriorityFirstThenArrival) {
  RequestQueue queue(9, 1000);
  queue.PutBack(WithPriority(1, 0));
  queue.PutBack(WithPriority(2, 5));
  queue.PutBack(WithPriority(3, -1));
  queue.PutBack(WithPriority(4, 5));
  std::vector<std::uint64_t> order;
  while (const std::unique_ptr<Sequence> sequence = queue.Pop()) {
    order.push_back(sequence->id.value);
  }
  EXPECT_THAT(order, ElementsAre(2, 4, 1, 3));
}

TEST(RequestQueueTest, WhoHasWaitedLongestIsPassedOverSoOften) {
  RequestQueue queue(9, 1000);
  queue.PutBack(WithPriority(1, -100));
  std::uint64_t next = 2;
  std::int64_t passed = 0;
  while (true) {
    queue.PutBack(WithPriority(next++, 100));
    const std::unique_ptr<Sequence> sequence = queue.Pop();
    queue.CountPassedOver(sequence->id);
    if (sequence->id.value == 1) {
      break;
    }
    ++passed;
  }
  EXPECT_EQ(passed, RequestQueue::kMaxPassedOver);
}

TEST(RequestQueueTest, TokensAreBoundedToo) {
  RequestQueue queue(9, 10);
  const auto with_tokens = [](std::uint64_t id, std::size_t tokens) {
    std::unique_ptr<Sequence> sequence = Waiting(id);
    sequence->tokens.resize(tokens);
    return sequence;
  };
  EXPECT_TRUE(queue.HasRoom(1, 50)) << "one alone may be longer than the bound";
  queue.PutBack(with_tokens(1, 6));
  EXPECT_TRUE(queue.HasRoom(1, 4));
  EXPECT_FALSE(queue.HasRoom(1, 5));
  queue.PutBack(with_tokens(2, 20));  // it was accepted before
  EXPECT_EQ(queue.num_tokens(), 26);
  EXPECT_EQ(queue.Pop()->id.value, 1U);
  EXPECT_EQ(queue.num_tokens(), 20);
}

TEST(RequestQueueTest, ADrainLeavesWhoHasRunBefore) {
  RequestQueue queue(9, 1000);
  queue.PutBack(Waiting(1));
  std::unique_ptr<Sequence> preempted = Waiting(2);
  preempted->started = absl::FromUnixSeconds(5);
  queue.PutBack(std::move(preempted));
  EXPECT_THAT(Ids(queue.TakeNeverRun()), ElementsAre(1));
  EXPECT_EQ(queue.Pop()->id.value, 2U);
}

TEST(SequenceTableTest, KeepsTheOrderOfArrivalAndForgetsTheRemoved) {
  SequenceTable table;
  for (const std::uint64_t id : {5, 2, 9}) {
    table.Add(Waiting(id));
  }
  std::vector<std::uint64_t> ids;
  for (const Sequence* sequence : table.InOrder()) {
    ids.push_back(sequence->id.value);
  }
  EXPECT_THAT(ids, ElementsAre(2, 5, 9));
  EXPECT_EQ(table.Remove(base::SequenceId{5})->id.value, 5U);
  EXPECT_EQ(table.Remove(base::SequenceId{5}), nullptr);
  EXPECT_EQ(table.Find(base::SequenceId{5}), nullptr);
  EXPECT_EQ(table.Find(base::SequenceId{9})->id.value, 9U);
  EXPECT_EQ(table.size(), 2);
}

TEST(SequenceTest, MovesForwardOrBackToWaiting) {
  Sequence sequence;
  sequence.MoveTo(SequenceState::kPrefilling);
  sequence.MoveTo(SequenceState::kDecoding);
  EXPECT_DEATH(sequence.MoveTo(SequenceState::kPrefilling), "finishes once");
  sequence.MoveTo(SequenceState::kWaiting);
  EXPECT_DEATH(sequence.MoveTo(SequenceState::kDecoding), "finishes once");
  sequence.MoveTo(SequenceState::kPrefilling);
  sequence.MoveTo(SequenceState::kFinished);
  EXPECT_DEATH(sequence.MoveTo(SequenceState::kFinished), "finishes once");
}

}  // namespace
}  // namespace comoe::batching
