#include "scheduler/batching/kv_block_manager.h"

#include <algorithm>
#include <string>
#include <utility>
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
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{5}, false);
  State state;
  ASSERT_TRUE(blocks.Extend(state, 0, 3).ok());
  EXPECT_THAT(Ids(state.groups[0]), ElementsAre(0));
  ASSERT_TRUE(blocks.Extend(state, 3, 4).ok());
  EXPECT_THAT(Ids(state.groups[0]), ElementsAre(0));
  ASSERT_TRUE(blocks.Extend(state, 4, 13).ok());
  EXPECT_THAT(Ids(state.groups[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(blocks.counts().used, 4);
  EXPECT_EQ(blocks.counts().total(), 5);
  blocks.Release(state);
  EXPECT_TRUE(state.empty());
  EXPECT_EQ(blocks.counts().used, 0);
}

TEST(KvBlockManagerTest, ARefusalChangesNothing) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4), Group(Kind::kLatentKv, 2)}, std::vector<std::int32_t>{8, 3},
                        false);
  State state;
  ASSERT_TRUE(blocks.Extend(state, 0, 3).ok());
  const absl::Status refused = blocks.Extend(state, 3, 7);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(Ids(state.groups[0]), ElementsAre(0));
  EXPECT_THAT(Ids(state.groups[1]), ElementsAre(0, 1));
  EXPECT_EQ(blocks.ReachableEnd(state, 3, 7), 6);
  EXPECT_TRUE(blocks.Extend(state, 3, 6).ok());
  EXPECT_EQ(blocks.ReachableEnd(state, 6, 7), 6);
  EXPECT_TRUE(blocks.IsConsistent({&state}));
}

TEST(KvBlockManagerTest, ReleasedBlocksAreReusedInOrder) {
  KvBlockManager blocks({Group(Kind::kFullKv, 1)}, std::vector<std::int32_t>{4}, false);
  State first;
  State second;
  ASSERT_TRUE(blocks.Extend(first, 0, 2).ok());
  ASSERT_TRUE(blocks.Extend(second, 0, 2).ok());
  EXPECT_THAT(Ids(second.groups[0]), ElementsAre(2, 3));
  blocks.Release(first);
  State third;
  ASSERT_TRUE(blocks.Extend(third, 0, 2).ok());
  EXPECT_THAT(Ids(third.groups[0]), ElementsAre(0, 1)) << "what is of no further use is overwritten first";
  EXPECT_TRUE(blocks.IsConsistent({&second, &third}));
  EXPECT_FALSE(blocks.IsConsistent({&second})) << "blocks of a state nobody names have leaked";
  EXPECT_FALSE(blocks.IsConsistent({&second, &third, &third})) << "a block has two owners";
}

TEST(KvBlockManagerTest, AWindowGivesBackWhatNoRowSeesAnyMore) {
  // Window 4, blocks of 2: the row at position q sees q - 3 .. q.
  KvBlockManager blocks({Group(Kind::kWindowKv, 2, 4)}, std::vector<std::int32_t>{3}, false);
  State state;
  ASSERT_TRUE(blocks.Extend(state, 0, 5).ok());
  EXPECT_THAT(Ids(state.groups[0]), ElementsAre(0, 1, 2));
  ASSERT_TRUE(blocks.Extend(state, 4, 5).ok());  // sees 1..4: block 0 holds position 1
  EXPECT_THAT(Ids(state.groups[0]), ElementsAre(0, 1, 2));
  EXPECT_EQ(blocks.ReachableEnd(state, 4, 9), 6);
  EXPECT_EQ(blocks.ReachableEnd(state, 5, 9), 8);  // sees 2..5: block 0 can go
  ASSERT_TRUE(blocks.Extend(state, 5, 7).ok());
  EXPECT_THAT(Ids(state.groups[0]), ElementsAre(-1, 1, 2, 0));
  for (std::int64_t position = 7; position < 100; ++position) {
    ASSERT_TRUE(blocks.Extend(state, position, position + 1).ok()) << position;
    ASSERT_LE(blocks.counts().used, 3);
    ASSERT_TRUE(blocks.IsConsistent({&state}));
  }
  blocks.Release(state);
  EXPECT_EQ(blocks.counts().used, 0);
}

TEST(KvBlockManagerTest, ARecurrentGroupTakesOneSlot) {
  KvBlockManager blocks({Group(Kind::kRecurrent, 0)}, std::vector<std::int32_t>{1}, false);
  State first;
  State second;
  ASSERT_TRUE(blocks.Extend(first, 0, 10).ok());
  ASSERT_TRUE(blocks.Extend(first, 10, 1000).ok());
  EXPECT_EQ(first.groups[0].slot, 0);
  EXPECT_EQ(blocks.ReachableEnd(second, 0, 5), 0);
  EXPECT_FALSE(blocks.Extend(second, 0, 5).ok());
  blocks.Release(first);
  EXPECT_TRUE(blocks.Extend(second, 0, 5).ok());
}

TEST(KvBlockManagerTest, LongestSequence) {
  const auto longest = [](std::vector<api::CacheGroup> groups, std::vector<std::int32_t> num_blocks) {
    return KvBlockManager(std::move(groups), num_blocks, false).LongestSequence();
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
                              std::vector<std::int32_t>{num_blocks}, false);
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

std::vector<base::TokenId> Tokens(std::int64_t count, base::TokenId first = 100) {
  std::vector<base::TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(first + static_cast<base::TokenId>(i));
  }
  return tokens;
}

// A sequence that was computed and has ended: its whole blocks are in the index.
std::vector<std::int32_t> Compute(KvBlockManager& blocks, const std::vector<base::TokenId>& tokens,
                                  const std::string& salt = "") {
  State state;
  const std::int64_t cached = blocks.AttachPrefix(state, salt, tokens);
  EXPECT_TRUE(blocks.Extend(state, cached, static_cast<std::int64_t>(tokens.size())).ok());
  blocks.Publish(state, salt, tokens);
  const std::vector<std::int32_t> ids = Ids(state.groups[0]);
  blocks.Release(state);
  return ids;
}

TEST(PrefixReuseTest, WholeBlocksAreSharedAndTheLastTokenIsComputed) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{10}, true);
  EXPECT_THAT(Compute(blocks, Tokens(13)), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(blocks.counts().cached, 3);
  EXPECT_EQ(blocks.counts().free, 7);
  for (const auto& [length, cached] : {std::pair(4, 0), {5, 4}, {8, 4}, {12, 8}, {13, 12}, {20, 12}}) {
    State state;
    EXPECT_EQ(blocks.AttachPrefix(state, "", Tokens(length)), cached) << length;
    EXPECT_TRUE(blocks.IsConsistent({&state}));
    blocks.Release(state);
  }
  State first;
  State second;
  ASSERT_EQ(blocks.AttachPrefix(first, "", Tokens(13)), 12);
  ASSERT_EQ(blocks.AttachPrefix(second, "", Tokens(9)), 8);
  EXPECT_THAT(Ids(first.groups[0]), ElementsAre(0, 1, 2));
  EXPECT_THAT(Ids(second.groups[0]), ElementsAre(0, 1));
  EXPECT_EQ(blocks.counts().used, 3) << "a block that two hold is one";
  blocks.Release(first);
  EXPECT_EQ(blocks.counts().used, 2);
  ASSERT_TRUE(blocks.Extend(second, 8, 9).ok());
  EXPECT_NE(Ids(second.groups[0])[2], 2) << "what is cached is overwritten last";
  EXPECT_TRUE(blocks.IsConsistent({&second}));
}

TEST(PrefixReuseTest, OtherTokensOrAnotherSaltShareNothing) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{20}, true);
  Compute(blocks, Tokens(9), "mine");
  State state;
  EXPECT_EQ(blocks.AttachPrefix(state, "", Tokens(9)), 0);
  EXPECT_EQ(blocks.AttachPrefix(state, "yours", Tokens(9)), 0);
  std::vector<base::TokenId> other = Tokens(9);
  other[0] = 7;
  EXPECT_EQ(blocks.AttachPrefix(state, "mine", other), 0);
  other = Tokens(9);
  other[5] = 7;
  EXPECT_EQ(blocks.AttachPrefix(state, "mine", other), 4) << "the first block is the same";
  blocks.Release(state);
  // The same second block behind another first one is another prefix.
  std::vector<base::TokenId> shifted = Tokens(9);
  shifted[1] = 7;
  Compute(blocks, shifted, "mine");
  State both;
  EXPECT_EQ(blocks.AttachPrefix(both, "mine", Tokens(9)), 8);
  EXPECT_THAT(Ids(both.groups[0]), ElementsAre(0, 1));
  blocks.Release(both);
}

TEST(PrefixReuseTest, NothingIsFoundBeforeItWasComputed) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{10}, true);
  State first;
  State second;
  ASSERT_TRUE(blocks.Extend(first, 0, 12).ok());
  EXPECT_EQ(blocks.AttachPrefix(second, "", Tokens(12)), 0);
  blocks.Publish(first, "", Tokens(6));  // a chunk: one whole block
  EXPECT_EQ(blocks.AttachPrefix(second, "", Tokens(12)), 4);
  blocks.Release(second);
  blocks.Publish(first, "", Tokens(12));
  EXPECT_EQ(blocks.AttachPrefix(second, "", Tokens(13)), 12);
  EXPECT_TRUE(blocks.IsConsistent({&first, &second}));
}

TEST(PrefixReuseTest, TwoThatComputeTheSameKeepTheirOwnBlocks) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{10}, true);
  State first;
  State second;
  ASSERT_TRUE(blocks.Extend(first, 0, 9).ok());
  ASSERT_TRUE(blocks.Extend(second, 0, 9).ok());
  blocks.Publish(first, "", Tokens(9));
  blocks.Publish(second, "", Tokens(9));
  State third;
  ASSERT_EQ(blocks.AttachPrefix(third, "", Tokens(9)), 8);
  EXPECT_THAT(Ids(third.groups[0]), ElementsAre(0, 1)) << "the first one's";
  EXPECT_TRUE(blocks.IsConsistent({&first, &second, &third}));
  blocks.Release(first);
  blocks.Release(second);
  blocks.Release(third);
  EXPECT_EQ(blocks.counts().cached, 2) << "the second one's copies are of no use";
  EXPECT_EQ(blocks.counts().free, 8);
}

TEST(PrefixReuseTest, TheLeastRecentlyUsedGoesFirstAndEndsGoBeforeBeginnings) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{6}, true);
  Compute(blocks, Tokens(13, 100));  // blocks 0 1 2 (3)
  Compute(blocks, Tokens(9, 500));   // 3 or others: two whole blocks
  EXPECT_EQ(blocks.counts().cached, 5);
  State touch;
  ASSERT_EQ(blocks.AttachPrefix(touch, "", Tokens(13, 100)), 12);
  blocks.Release(touch);  // used last now
  State grows;
  ASSERT_TRUE(blocks.Extend(grows, 0, 8).ok());  // the free block, then the end of the second sequence
  State state;
  EXPECT_EQ(blocks.AttachPrefix(state, "", Tokens(9, 500)), 4);
  blocks.Release(state);
  EXPECT_EQ(blocks.AttachPrefix(state, "", Tokens(13, 100)), 12);
  blocks.Release(state);
  ASSERT_TRUE(blocks.Extend(grows, 8, 16).ok());
  EXPECT_EQ(blocks.AttachPrefix(state, "", Tokens(9, 500)), 0);
  EXPECT_EQ(blocks.AttachPrefix(state, "", Tokens(13, 100)), 8)
      << "its end went, its beginning is still of use";
  EXPECT_TRUE(blocks.IsConsistent({&grows, &state}));
}

TEST(PrefixReuseTest, AFlushForgetsAllAndTakesNothingFromAnybody) {
  KvBlockManager blocks({Group(Kind::kFullKv, 4)}, std::vector<std::int32_t>{10}, true);
  Compute(blocks, Tokens(9, 100));
  State holds;
  ASSERT_EQ(blocks.AttachPrefix(holds, "", Tokens(6, 100)), 4);
  EXPECT_EQ(blocks.ForgetPrefixes(), 1);
  EXPECT_EQ(blocks.counts().cached, 0);
  EXPECT_EQ(blocks.counts().used, 1);
  State state;
  EXPECT_EQ(blocks.AttachPrefix(state, "", Tokens(9, 100)), 0);
  EXPECT_TRUE(blocks.IsConsistent({&holds}));
  blocks.Release(holds);
  EXPECT_EQ(blocks.counts().free, 10);
}

TEST(PrefixReuseTest, AWindowNeedsOnlyWhatTheNextRowSees) {
  // Window 4, blocks of 2.
  KvBlockManager blocks({Group(Kind::kFullKv, 2), Group(Kind::kWindowKv, 2, 4)},
                        std::vector<std::int32_t>{20, 20}, true);
  const std::vector<base::TokenId> tokens = Tokens(11);
  State state;
  for (std::int64_t i = 0; i < 11; ++i) {
    ASSERT_TRUE(blocks.Extend(state, i, i + 1).ok());
    blocks.Publish(state, "", absl::MakeConstSpan(tokens).first(static_cast<std::size_t>(i + 1)));
  }
  blocks.Release(state);
  State next;
  ASSERT_EQ(blocks.AttachPrefix(next, "", tokens), 10);
  EXPECT_THAT(Ids(next.groups[1]), ElementsAre(-1, -1, -1, 3, 4));  // the row at 10 sees 7..10
  EXPECT_TRUE(blocks.IsConsistent({&next}));
  blocks.Release(next);
}

// Sequences over few different tokens, so that prefixes are found often, against blocks that are few.
TEST(PrefixReuseTest, RandomSequencesAddUpAndNeverWriteWhatIsShared) {
  KvBlockManager blocks({Group(Kind::kFullKv, 2), Group(Kind::kWindowKv, 2, 5)},
                        std::vector<std::int32_t>{14, 12}, true);
  constexpr std::uint64_t kSeed = 5;
  struct Running {
    State state;
    std::vector<base::TokenId> tokens;
    std::int64_t computed = 0;
  };
  std::vector<Running> running(4);
  std::uint64_t draw = 0;
  const auto random = [&draw](std::uint64_t below) { return base::RandomBits(kSeed, draw++) % below; };
  std::int64_t found = 0;
  for (int step = 0; step < 20000; ++step) {
    Running& who = running[random(running.size())];
    if (who.tokens.empty()) {
      for (std::uint64_t i = 0, length = 1 + random(10); i < length; ++i) {
        who.tokens.push_back(static_cast<base::TokenId>(random(2)));
      }
      who.computed = blocks.AttachPrefix(who.state, "", who.tokens);
      found += who.computed;
    } else if (random(8) == 0 || who.tokens.size() > 20) {
      blocks.Release(who.state);
      who = Running();
    } else {
      const auto end = std::min<std::int64_t>(static_cast<std::int64_t>(who.tokens.size()),
                                              who.computed + 1 + static_cast<std::int64_t>(random(4)));
      if (blocks.Extend(who.state, who.computed, end).ok()) {
        // Rows [computed, end) are written: nobody else may hold their blocks, and no prefix may lie in them.
        for (const Running& other : running) {
          for (std::size_t i = static_cast<std::size_t>(who.computed) / 2;
               i < who.state.groups[0].blocks.size(); ++i) {
            ASSERT_TRUE(&other == &who || other.state.empty() ||
                        std::count(other.state.groups[0].blocks.begin(), other.state.groups[0].blocks.end(),
                                   who.state.groups[0].blocks[i]) == 0);
          }
        }
        who.computed = end;
        blocks.Publish(who.state, "", absl::MakeConstSpan(who.tokens).first(static_cast<std::size_t>(end)));
        if (end == static_cast<std::int64_t>(who.tokens.size())) {
          who.tokens.push_back(static_cast<base::TokenId>(random(2)));
        }
      }
    }
    ASSERT_TRUE(
        blocks.IsConsistent({&running[0].state, &running[1].state, &running[2].state, &running[3].state}))
        << "step " << step;
  }
  EXPECT_GT(found, 1000);
}

TEST(KvBlockManagerTest, RandomGrowthAndReleaseAddsUp) {
  KvBlockManager blocks({Group(Kind::kFullKv, 3), Group(Kind::kWindowKv, 2, 5), Group(Kind::kRecurrent, 0)},
                        std::vector<std::int32_t>{20, 12, 4}, false);
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
