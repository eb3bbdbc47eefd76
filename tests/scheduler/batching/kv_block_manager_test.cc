#include "scheduler/batching/kv_block_manager.h"

#include <vector>

#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::batching {
namespace {

using ::testing::ElementsAre;
using Kind = api::CacheGroup::Kind;
using State = KvBlockManager::State;

api::CacheGroup Group(Kind kind, std::int32_t block_tokens, std::int64_t window_tokens = 0) {
  api::CacheGroup group;
  group.kind = kind;
  group.num_layers = 1;
  group.block_tokens = block_tokens;
  group.window_tokens = window_tokens;
  return group;
}

std::vector<std::int32_t> Ids(const api::GroupState& state) {
  std::vector<std::int32_t> ids;
  for (const base::BlockId block : state.blocks) {
    ids.push_back(block.value);
  }
  return ids;
}

TEST(KvBlockManagerTest, BlocksComeAsPositionsGrow) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{5});
  State state;
  ASSERT_TRUE(blocks.Extend(state, 0, 3).ok());
  EXPECT_THAT(Ids(state[0]), ElementsAre(0));
  ASSERT_TRUE(blocks.Extend(state, 3, 4).ok());
  EXPECT_THAT(Ids(state[0]), ElementsAre(0));
  ASSERT_TRUE(blocks.Extend(state, 4, 13).ok());
  EXPECT_THAT(Ids(state[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(blocks.used_blocks(), 4);
  EXPECT_EQ(blocks.total_blocks(), 5);
  blocks.Release(state);
  EXPECT_TRUE(state.empty());
  EXPECT_EQ(blocks.used_blocks(), 0);
}

TEST(KvBlockManagerTest, ARefusalChangesNothing) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4), Group(Kind::kLatentKv, 2)},
                        std::vector<std::int32_t>{8, 3});
  State state;
  ASSERT_TRUE(blocks.Extend(state, 0, 3).ok());
  const absl::Status refused = blocks.Extend(state, 3, 7);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(Ids(state[0]), ElementsAre(0));
  EXPECT_THAT(Ids(state[1]), ElementsAre(0, 1));
  EXPECT_EQ(blocks.ReachableEnd(state, 3, 7), 6);
  EXPECT_TRUE(blocks.Extend(state, 3, 6).ok());
  EXPECT_EQ(blocks.ReachableEnd(state, 6, 7), 6);
  EXPECT_TRUE(blocks.IsConsistent({&state}));
}

TEST(KvBlockManagerTest, ReleasedBlocksAreReusedInOrder) {
  KvBlockManager blocks({Group(Kind::kFullKv, 1)}, std::vector<std::int32_t>{4});
  State first;
  State second;
  ASSERT_TRUE(blocks.Extend(first, 0, 2).ok());
  ASSERT_TRUE(blocks.Extend(second, 0, 2).ok());
  EXPECT_THAT(Ids(second[0]), ElementsAre(2, 3));
  blocks.Release(first);
  State third;
  ASSERT_TRUE(blocks.Extend(third, 0, 2).ok());
  EXPECT_THAT(Ids(third[0]), ElementsAre(0, 1));
  EXPECT_TRUE(blocks.IsConsistent({&second, &third}));
  EXPECT_FALSE(blocks.IsConsistent({&second})) << "blocks of a state nobody names have leaked";
  EXPECT_FALSE(blocks.IsConsistent({&second, &third, &third})) << "a block has two owners";
}

TEST(KvBlockManagerTest, AWindowGivesBackWhatNoRowSeesAnyMore) {
  // Window 4, blocks of 2: the row at position q sees q - 3 .. q.
  KvBlockManager blocks({Group(Kind::kWindowKv, 2, 4)}, std::vector<std::int32_t>{3});
  State state;
  ASSERT_TRUE(blocks.Extend(state, 0, 5).ok());
  EXPECT_THAT(Ids(state[0]), ElementsAre(0, 1, 2));
  ASSERT_TRUE(blocks.Extend(state, 4, 5).ok());  // sees 1..4: block 0 holds position 1
  EXPECT_THAT(Ids(state[0]), ElementsAre(0, 1, 2));
  EXPECT_EQ(blocks.ReachableEnd(state, 4, 9), 6);
  EXPECT_EQ(blocks.ReachableEnd(state, 5, 9), 8);  // sees 2..5: block 0 can go
  ASSERT_TRUE(blocks.Extend(state, 5, 7).ok());
  EXPECT_THAT(Ids(state[0]), ElementsAre(-1, 1, 2, 0));
  for (std::int64_t position = 7; position < 100; ++position) {
    ASSERT_TRUE(blocks.Extend(state, position, position + 1).ok()) << position;
    ASSERT_LE(blocks.used_blocks(), 3);
    ASSERT_TRUE(blocks.IsConsistent({&state}));
  }
  blocks.Release(state);
  EXPECT_EQ(blocks.used_blocks(), 0);
}

TEST(KvBlockManagerTest, ARecurrentGroupTakesOneSlot) {
  KvBlockManager blocks({Group(Kind::kRecurrent, 0)}, std::vector<std::int32_t>{1});
  State first;
  State second;
  ASSERT_TRUE(blocks.Extend(first, 0, 10).ok());
  ASSERT_TRUE(blocks.Extend(first, 10, 1000).ok());
  EXPECT_EQ(first[0].slot, 0);
  EXPECT_EQ(blocks.ReachableEnd(second, 0, 5), 0);
  EXPECT_FALSE(blocks.Extend(second, 0, 5).ok());
  blocks.Release(first);
  EXPECT_TRUE(blocks.Extend(second, 0, 5).ok());
}

TEST(KvBlockManagerTest, LongestSequence) {
  const auto longest = [](std::vector<api::CacheGroup> groups, std::vector<std::int32_t> num_blocks) {
    return KvBlockManager(std::move(groups), num_blocks).LongestSequence();
  };
  constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(longest({Group(Kind::kFullKv, 16)}, {10}), 160);
  EXPECT_EQ(longest({Group(Kind::kFullKv, 16), Group(Kind::kLatentKv, 4)}, {10, 30}), 120);
  EXPECT_EQ(longest({Group(Kind::kWindowKv, 4, 9)}, {3}), kUnlimited);
  EXPECT_EQ(longest({Group(Kind::kWindowKv, 4, 10)}, {3}), 12) << "ten positions may lie in four blocks";
  EXPECT_EQ(longest({Group(Kind::kRecurrent, 0)}, {1}), kUnlimited);
  EXPECT_EQ(longest({Group(Kind::kRecurrent, 0)}, {0}), 0);
}

// Every window and block size small enough to try: with as many blocks as LongestSequence asks for, one
// sequence moves on for ever, and with one fewer it does not.
TEST(KvBlockManagerTest, LongestSequenceIsTheLeastThatLetsAWindowMoveOn) {
  for (std::int32_t block_tokens = 1; block_tokens <= 5; ++block_tokens) {
    for (std::int64_t window = 1; window <= 12; ++window) {
      bool before = false;
      for (std::int32_t num_blocks = 1; num_blocks <= 14; ++num_blocks) {
        KvBlockManager blocks({Group(Kind::kWindowKv, block_tokens, window)},
                              std::vector<std::int32_t>{num_blocks});
        State state;
        bool endless = true;
        for (std::int64_t position = 0; position < 100 && endless; ++position) {
          endless = blocks.Extend(state, position, position + 1).ok();
        }
        EXPECT_EQ(blocks.LongestSequence() > 1000, endless)
            << block_tokens << " " << window << " " << num_blocks;
        EXPECT_TRUE(endless || !before);
        before = endless;
      }
    }
  }
}

TEST(KvBlockManagerTest, RandomGrowthAndReleaseAddsUp) {
  KvBlockManager blocks({Group(Kind::kFullKv, 3), Group(Kind::kWindowKv, 2, 5), Group(Kind::kRecurrent, 0)},
                        std::vector<std::int32_t>{20, 12, 4});
  constexpr std::uint64_t kSeed = 4;
  std::vector<State> states(6);
  std::vector<std::int64_t> computed(6, 0);
  for (std::uint64_t step = 0; step < 20000; ++step) {
    const auto who = static_cast<std::size_t>(base::RandomBits(kSeed, 3 * step) % states.size());
    if (base::RandomBits(kSeed, 3 * step + 1) % 8 == 0) {
      blocks.Release(states[who]);
      computed[who] = 0;
    } else {
      const std::int64_t end =
          computed[who] + 1 + static_cast<std::int64_t>(base::RandomBits(kSeed, 3 * step + 2) % 6);
      const std::int64_t reachable = blocks.ReachableEnd(states[who], computed[who], end);
      ASSERT_EQ(blocks.Extend(states[who], computed[who], end).ok(), reachable == end);
      if (reachable > computed[who]) {
        ASSERT_TRUE(blocks.Extend(states[who], computed[who], reachable).ok());
        computed[who] = reachable;
      }
    }
    std::vector<const State*> all;
    for (const State& state : states) {
      all.push_back(&state);
    }
    ASSERT_TRUE(blocks.IsConsistent(all)) << "step " << step;
  }
}

}  // namespace
}  // namespace comoe::batching
