// Trace files: what is written is read again, and what is damaged is refused.
#include "scheduler/routing/trace_file.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/mapped_file.h"
#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "scheduler/routing/byte_format.h"
#include "scheduler/routing/resident_director.h"
#include "scheduler/routing/trace_recorder.h"

namespace comoe::routing {
namespace {

TraceHeader Header(bool full) {
  TraceHeader header;
  header.model = "a model";
  header.model_hash = 0x1234567890abcdefULL;
  header.expert_bytes = 4096;
  header.vocab_size = 100;
  header.num_layers = 4;
  header.moe_layers = {1, 3};
  header.num_experts = 8;
  header.experts_per_token = 2;
  if (full) {
    header.has_weights = true;
    header.has_domains = true;
    header.lookahead = 1;
    header.lookahead_width = 4;
    header.has_scores = true;
  }
  return header;
}

// Sequences side by side, all values drawn from a seed.
std::vector<TraceStepRecord> Steps(const TraceHeader& header, int num_steps, std::uint64_t seed) {
  std::uint64_t n = 0;
  const auto draw = [&](std::uint64_t below) { return base::RandomBits(seed, n++) % below; };
  std::vector<TraceStepRecord> steps;
  for (int i = 0; i < num_steps; ++i) {
    TraceStepRecord& step = steps.emplace_back();
    step.step = static_cast<std::uint64_t>(i) + 7;
    for (std::uint64_t s = 0; s < 3; ++s) {
      step.rows.push_back({100 + s, i, static_cast<base::TokenId>(draw(100)),
                           static_cast<std::uint8_t>(header.has_domains ? draw(14) : 0)});
    }
    const std::size_t cells = header.moe_layers.size() * step.rows.size();
    for (std::size_t c = 0; c < cells * 2; ++c) {
      step.experts.push_back(static_cast<std::uint16_t>(draw(8)));
      if (header.has_weights) {
        step.weights.push_back(static_cast<float>(draw(1000)) * 1e-3F);
      }
    }
    for (std::size_t c = 0; c < cells * static_cast<std::size_t>(header.lookahead * header.lookahead_width);
         ++c) {
      step.ahead.push_back(draw(5) == 0 ? kNoExpert : static_cast<std::uint16_t>(draw(8)));
      step.scores.push_back(static_cast<float>(draw(1000)) * 1e-2F - 5.0F);
    }
  }
  return steps;
}

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest()
      : path_((std::filesystem::temp_directory_path() /
               ("comoe_trace_file_test_" +
                std::string(::testing::UnitTest::GetInstance()->current_test_info()->name())))
                  .string()) {}
  ~TraceFileTest() override { std::filesystem::remove(path_); }

  std::string Write(const TraceHeader& header, const std::vector<TraceStepRecord>& steps) {
    std::filesystem::remove(path_);
    auto writer = TraceWriter::Create(path_, header);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const TraceStepRecord& step : steps) {
      EXPECT_TRUE((*writer)->Append(step).ok());
    }
    EXPECT_FALSE(std::filesystem::exists(path_)) << "half-written";
    EXPECT_TRUE((*writer)->Finish().ok());
    auto bytes = base::ReadFile(path_, 1 << 24);
    EXPECT_TRUE(bytes.ok());
    return *bytes;
  }
  static absl::Status Parse(const std::string& bytes) {
    return ParseTrace(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()),
                      "a file", [](const TraceHeader&, const TraceStepRecord&) { return absl::OkStatus(); })
        .status();
  }

  const std::string path_;
};

TEST_F(TraceFileTest, StepsComeBackAsTheyWere) {
  for (const bool full : {false, true}) {
    const TraceHeader header = Header(full);
    const std::vector<TraceStepRecord> steps = Steps(header, 2000, 1);  // several chunks
    Write(header, steps);
    std::size_t i = 0;
    const auto read = ReadTraceSteps(path_, [&](const TraceHeader& seen, const TraceStepRecord& step) {
      EXPECT_EQ(seen.model, header.model);
      const TraceStepRecord& was = steps[i++];
      EXPECT_EQ(step.step, was.step);
      EXPECT_EQ(step.experts, was.experts);
      EXPECT_EQ(step.weights, was.weights);
      EXPECT_EQ(step.ahead, was.ahead);
      EXPECT_EQ(step.scores, was.scores);
      for (std::size_t r = 0; r < was.rows.size(); ++r) {
        EXPECT_EQ(step.rows[r].sequence, was.rows[r].sequence);
        EXPECT_EQ(step.rows[r].position, was.rows[r].position);
        EXPECT_EQ(step.rows[r].token, was.rows[r].token);
        EXPECT_EQ(step.rows[r].domain, was.rows[r].domain);
      }
      return absl::OkStatus();
    });
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(i, steps.size());
    EXPECT_EQ(read->model_hash, header.model_hash);
    EXPECT_EQ(read->moe_layers, header.moe_layers);
    EXPECT_EQ(read->lookahead, header.lookahead);
  }
}

TEST_F(TraceFileTest, SequencesAreGatheredAndWrittenBack) {
  const TraceHeader header = Header(true);
  const std::vector<TraceStepRecord> steps = Steps(header, 5, 2);
  Write(header, steps);
  const absl::StatusOr<Trace> trace = ReadTrace(path_);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->sequences.size(), 3U);
  EXPECT_EQ(trace->num_rows(), 15);
  // [L, T, k] of step 4, row 1, layer 1.
  EXPECT_EQ(trace->Experts(1, 4, 1)[0], steps[4].experts[(1 * 3 + 1) * 2]);
  EXPECT_EQ(trace->Ahead(1, 4, 1, 1)[3], steps[4].ahead[(1 * 3 + 1) * 4 + 3]);
  EXPECT_EQ(trace->Scores(2, 0, 1, 1)[0], steps[0].scores[(1 * 3 + 2) * 4]);
  ASSERT_TRUE(WriteTrace(path_, *trace).ok());
  const absl::StatusOr<Trace> again = ReadTrace(path_);
  ASSERT_TRUE(again.ok()) << again.status();
  for (std::size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(again->sequences[s].id, 100 + s);
    EXPECT_EQ(again->sequences[s].tokens, trace->sequences[s].tokens);
    EXPECT_EQ(again->sequences[s].domains, trace->sequences[s].domains);
    EXPECT_EQ(again->sequences[s].experts, trace->sequences[s].experts);
    EXPECT_EQ(again->sequences[s].weights, trace->sequences[s].weights);
    EXPECT_EQ(again->sequences[s].ahead, trace->sequences[s].ahead);
    EXPECT_EQ(again->sequences[s].scores, trace->sequences[s].scores);
  }
}

TEST_F(TraceFileTest, WhatDoesNotFitTheModelIsNotWritten) {
  const TraceHeader header = Header(false);
  auto writer = TraceWriter::Create(path_, header);
  ASSERT_TRUE(writer.ok());
  TraceStepRecord step = Steps(header, 1, 3).front();
  step.experts[5] = 8;
  EXPECT_EQ((*writer)->Append(step).code(), absl::StatusCode::kInvalidArgument);
  step.experts.pop_back();
  EXPECT_EQ((*writer)->Append(step).code(), absl::StatusCode::kInvalidArgument);
  TraceHeader broken = header;
  broken.moe_layers = {3, 1};
  EXPECT_EQ(TraceWriter::Create(path_, broken).status().code(), absl::StatusCode::kInvalidArgument);
  writer->reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TraceFileTest, APositionThatIsSkippedIsSaid) {
  const TraceHeader header = Header(false);
  std::vector<TraceStepRecord> steps = Steps(header, 3, 4);
  steps.erase(steps.begin() + 1);
  Write(header, steps);
  const absl::Status status = ReadTrace(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("position 2 instead of 1"), absl::string_view::npos) << status;
}

TEST_F(TraceFileTest, CutShortAnywhereIsRefused) {
  const std::string bytes = Write(Header(true), Steps(Header(true), 4, 5));
  ASSERT_TRUE(Parse(bytes).ok());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Parse(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_EQ(Parse(bytes + "x").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Parse("PK and what follows").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TraceFileTest, AnyFlippedBitIsFound) {
  const std::string bytes = Write(Header(true), Steps(Header(true), 2, 6));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    EXPECT_FALSE(Parse(damaged).ok()) << i;
  }
}

// Damage that a checksum does not show: every checksum is made right again, so that the fields themselves
// have to be checked. Must not crash, and either is refused or reads as something that fits its own header.
TEST_F(TraceFileTest, RandomDamageUnderRightChecksums) {
  const std::string bytes = Write(Header(true), Steps(Header(true), 3, 7));
  const auto u32 = [](const std::string& from, std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, from.data() + at, sizeof value);
    return value;
  };
  const std::size_t header_end = 16 + u32(bytes, 12);
  const std::size_t chunk = header_end + 8;
  const std::size_t chunk_end = chunk + 16 + u32(bytes, chunk + 8);
  int refused = 0;
  constexpr int kTrials = 20000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string damaged = bytes;
    const auto seed = static_cast<std::uint64_t>(trial);
    for (std::uint64_t n = 0; n <= base::RandomBits(seed, 99) % 3; ++n) {
      const std::size_t at = 12 + base::RandomBits(seed, 2 * n) % (chunk_end - 12);
      const auto bits = base::RandomBits(seed, 2 * n + 1);
      // Small numbers and extremes as well as any byte.
      damaged[at] = static_cast<char>(bits % 3 == 0 ? 0xFF : (bits % 3 == 1 ? bits >> 8 & 3 : bits >> 8));
    }
    const auto put_sum = [&damaged](std::size_t from, std::size_t to) {
      const std::uint64_t sum = ByteChecksum(damaged.data() + from, to - from);
      std::memcpy(damaged.data() + to, &sum, sizeof sum);
    };
    put_sum(0, header_end);
    put_sum(chunk, chunk_end);
    refused += Parse(damaged).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, kTrials / 10);
}

TEST(StepRecorderTest, GathersAStep) {
  TraceHeader header = Header(true);
  header.has_domains = false;
  TierShape shape;
  shape.num_layers = header.num_layers;
  shape.moe_layers = header.moe_layers;
  shape.num_experts = header.num_experts;
  shape.experts_per_token = header.experts_per_token;
  shape.device_slots = shape.num_moe_experts();
  absl::StatusOr<std::unique_ptr<api::ExpertDirector>> inner = MakeResidentDirector(shape, PolicyOptions{});
  ASSERT_TRUE(inner.ok()) << inner.status();
  std::vector<TraceStepRecord> seen;
  const std::unique_ptr<api::ExpertDirector> recorder = MakeStepRecorder(
      *std::move(inner), header, [&seen](const TraceStepRecord& step) { seen.push_back(step); });
  EXPECT_EQ(recorder->lookahead(), 1);

  api::StepPlan plan;
  plan.step = {5};
  for (std::uint64_t s = 1; s <= 2; ++s) {
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = {s};
    span.start_position = 10;
    span.tokens = {static_cast<base::TokenId>(40 + s)};
  }
  recorder->BeginStep(plan);
  const std::vector<std::int32_t> experts = {1, 2, 3, 4};
  const std::vector<float> weights = {.5F, .4F, .3F, .2F};
  std::vector<float> logits(2 * 8, 0.0F);
  logits[7] = 3.0F;
  logits[2] = 2.0F;
  logits[8 + 5] = 1.0F;
  for (const std::int32_t layer : header.moe_layers) {
    recorder->ObserveRouting({plan.step, layer, 2, experts, weights});
    if (layer == 1) {
      recorder->ObserveLookahead({plan.step, 1, 3, 8, logits});
    }
  }
  recorder->EndStep();
  ASSERT_EQ(seen.size(), 1U);
  ASSERT_TRUE(CheckTraceStep(header, seen[0]).ok()) << CheckTraceStep(header, seen[0]);
  EXPECT_EQ(seen[0].step, 5U);
  EXPECT_EQ(seen[0].rows[1].sequence, 2U);
  EXPECT_EQ(seen[0].rows[1].token, 42);
  EXPECT_EQ(seen[0].experts, (std::vector<std::uint16_t>{1, 2, 3, 4, 1, 2, 3, 4}));
  // Nothing is named for the first layer; for the second the best, the lower id first among equals.
  EXPECT_EQ(seen[0].ahead[0], kNoExpert);
  const std::vector<std::uint16_t> named(seen[0].ahead.begin() + 8, seen[0].ahead.end());
  EXPECT_EQ(named, (std::vector<std::uint16_t>{7, 2, 0, 1, 5, 0, 1, 2}));
  EXPECT_EQ(seen[0].scores[8], 3.0F);
}

}  // namespace
}  // namespace comoe::routing
