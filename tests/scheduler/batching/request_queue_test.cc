#include "scheduler/batching/request_queue.h"

#include <memory>
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
  RequestQueue queue(2);
  EXPECT_EQ(queue.Pop(), nullptr);
  queue.Push(Waiting(1));
  EXPECT_FALSE(queue.full());
  queue.Push(Waiting(2));
  EXPECT_TRUE(queue.full());
  EXPECT_EQ(queue.Pop()->id.value, 1U);
  queue.Push(Waiting(3));
  EXPECT_THAT(Ids(queue.TakeAll()), ElementsAre(2, 3));
  EXPECT_TRUE(queue.empty());
}

TEST(RequestQueueTest, RemovesById) {
  RequestQueue queue(5);
  for (const std::uint64_t id : {1, 2, 3}) {
    queue.Push(Waiting(id));
  }
  EXPECT_EQ(queue.Remove(base::SequenceId{2})->id.value, 2U);
  EXPECT_EQ(queue.Remove(base::SequenceId{2}), nullptr);
  EXPECT_THAT(Ids(queue.TakeAll()), ElementsAre(1, 3));
}

TEST(RequestQueueTest, TakesTheExpiredInOrder) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  RequestQueue queue(9);
  queue.Push(Waiting(1, now + absl::Seconds(1)));
  queue.Push(Waiting(2, now));
  queue.Push(Waiting(3));
  queue.Push(Waiting(4, now - absl::Seconds(1)));
  EXPECT_THAT(Ids(queue.TakeExpired(now)), ElementsAre(2, 4));
  EXPECT_THAT(queue.TakeExpired(now), IsEmpty());
  EXPECT_THAT(Ids(queue.TakeAll()), ElementsAre(1, 3));
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

TEST(SequenceTest, MovesForwardOnly) {
  Sequence sequence;
  sequence.MoveTo(SequenceState::kPrefilling);
  sequence.MoveTo(SequenceState::kDecoding);
  EXPECT_DEATH(sequence.MoveTo(SequenceState::kPrefilling), "finishes once");
  sequence.MoveTo(SequenceState::kFinished);
  EXPECT_DEATH(sequence.MoveTo(SequenceState::kFinished), "finishes once");
}

}  // namespace
}  // namespace comoe::batching
