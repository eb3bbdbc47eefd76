// Checkpoints written to a folder open again as what they were; a failure leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/widen.h"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void NoProgress(std::uint64_t, std::uint64_t) {}

std::set<std::string> FilesOf(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void ExpectSameTensors(const TensorSource& a, const TensorSource& b) {
  ASSERT_EQ(a.Names(), b.Names());
  for (const std::string& name : a.Names()) {
    const TensorInfo* left = a.Find(name);
    const TensorInfo* right = b.Find(name);
    ASSERT_EQ(left->shape, right->shape) << name;
    ASSERT_EQ(left->dtype, right->dtype) << name;
    const auto left_data = a.Read(*left);
    const auto right_data = b.Read(*right);
    ASSERT_TRUE(left_data.ok() && right_data.ok());
    ASSERT_EQ(left_data->bytes.size(), right_data->bytes.size());
    ASSERT_EQ(std::memcmp(left_data->bytes.data(), right_data->bytes.data(), left_data->bytes.size()), 0)
        << name;
  }
}

// The widened fixture in `directory`.
absl::Status WriteWidened(const std::string& fixture, const std::string& directory, std::uint64_t shard_bytes,
                          ModelConfig* config = nullptr) {
  const auto opened = OpenCheckpoint(FixtureDir(fixture));
  EXPECT_TRUE(opened.ok()) << opened.status();
  const auto wide = WidenConfig(opened->config, 128, 64);
  const auto source = MakeWidenedSource(*opened->source, opened->config, *wide);
  const auto json = WithFields(ReadText(FixtureDir(fixture) + "/config.json"), *wide);
  if (config != nullptr) {
    *config = *wide;
  }
  WriteOptions options;
  options.shard_bytes = shard_bytes;
  options.copy_from = FixtureDir(fixture);
  return WriteCheckpoint(**source, directory, *json, options, NoProgress);
}

TEST(WriteCheckpoint, OneFileAndShardsOpenAgain) {
  const auto opened = OpenCheckpoint(FixtureDir("qwen3_moe"));
  ASSERT_TRUE(opened.ok());
  for (const std::uint64_t shard_bytes : {std::uint64_t{1} << 30, std::uint64_t{100'000}, std::uint64_t{1}}) {
    const TempDir temp;
    ModelConfig config;
    ASSERT_TRUE(WriteWidened("qwen3_moe", temp.File("new/deep"), shard_bytes, &config).ok());
    const auto reread = OpenCheckpoint(temp.File("new/deep"));
    ASSERT_TRUE(reread.ok()) << reread.status();
    EXPECT_EQ(reread->config.hidden, 128);
    EXPECT_EQ(reread->config.norm_epsilon, config.norm_epsilon);
    EXPECT_TRUE(reread->report.unexpected.empty());
    const auto wide = MakeWidenedSource(*opened->source, opened->config, config);
    ASSERT_TRUE(wide.ok());
    ExpectSameTensors(**wide, *reread->source);
    const std::set<std::string> files = FilesOf(temp.File("new/deep"));
    EXPECT_EQ(files.contains("model.safetensors"), shard_bytes > 1'000'000'000);
    EXPECT_EQ(files.contains("model.safetensors.index.json"), shard_bytes < 1'000'000'000);
    for (const std::string& name : files) {
      EXPECT_EQ(name.find(".partial"), std::string::npos) << name;
    }
  }
}

TEST(WriteCheckpoint, CopiesTokenizerFilesAndReportsProgress) {
  const auto opened = OpenCheckpoint(FixtureDir("olmoe"));
  ASSERT_TRUE(opened.ok());
  const TempDir temp;
  WriteText(temp.File("tokenizer.json"), "{tokenizer}");
  WriteText(temp.File("generation_config.json"), "{generation}");
  WriteText(temp.File("unrelated.txt"), "x");
  WriteOptions options;
  options.copy_from = temp.path();
  std::vector<std::uint64_t> seen;
  std::uint64_t last_total = 0;
  const absl::Status status = WriteCheckpoint(*opened->source, temp.File("out"), "{}", options,
                                              [&](std::uint64_t done, std::uint64_t total) {
                                                seen.push_back(done);
                                                last_total = total;
                                              });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(FilesOf(temp.File("out")), (std::set<std::string>{"config.json", "generation_config.json",
                                                              "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(ReadText(temp.File("out/tokenizer.json")), "{tokenizer}");
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.size(), opened->source->Names().size());
  EXPECT_EQ(seen.back(), last_total);
}

TEST(WriteCheckpoint, ReplacesItsOwnFilesAndNothingElse) {
  const TempDir temp;
  ASSERT_TRUE(WriteWidened("olmoe", temp.File("out"), 100'000).ok());
  const std::set<std::string> sharded = FilesOf(temp.File("out"));
  EXPECT_GT(sharded.size(), 5U);
  ASSERT_TRUE(WriteWidened("olmoe", temp.File("out"), std::uint64_t{1} << 30).ok());
  EXPECT_EQ(FilesOf(temp.File("out")), (std::set<std::string>{"config.json", "model.safetensors"}));
  EXPECT_TRUE(OpenCheckpoint(temp.File("out")).ok());

  WriteText(temp.File("out/notes.txt"), "mine");
  const absl::Status refused = WriteWidened("olmoe", temp.File("out"), 100'000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("notes.txt"));
  EXPECT_EQ(ReadText(temp.File("out/notes.txt")), "mine");
}

// A checkpoint of somebody else has the same file names; it is not ours to replace.
TEST(WriteCheckpoint, RefusesAForeignCheckpoint) {
  const TempDir temp;
  fs::copy(FixtureDir("olmoe"), temp.File("theirs"));
  fs::remove(temp.File("theirs/golden.json"));
  fs::remove(temp.File("theirs/golden.safetensors"));
  const absl::Status refused = WriteWidened("olmoe", temp.File("theirs"), 100'000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(OpenCheckpoint(temp.File("theirs")).ok());
  fs::create_directory(temp.File("config_only"));
  WriteText(temp.File("config_only/config.json"), "{}");
  EXPECT_EQ(WriteWidened("olmoe", temp.File("config_only"), 100'000).code(),
            absl::StatusCode::kFailedPrecondition);
  WriteText(temp.File("file"), "x");
  EXPECT_FALSE(WriteWidened("olmoe", temp.File("file"), 100'000).ok());
}

// A source that breaks after some tensors.
class BrokenSource : public TensorSource {
 public:
  explicit BrokenSource(const TensorSource& source) : source_(source) {}
  std::vector<std::string> Names() const override { return source_.Names(); }
  const TensorInfo* Find(absl::string_view name) const override { return source_.Find(name); }
  absl::StatusOr<TensorData> Read(const TensorInfo& info) const override {
    if (info.name == "model.norm.weight") {
      return absl::DataLossError("broken tensor");
    }
    return source_.Read(info);
  }
  void Release(const TensorInfo& info) const override { source_.Release(info); }

 private:
  const TensorSource& source_;
};

TEST(WriteCheckpoint, LeavesNothingBehindOnFailure) {
  const auto opened = OpenCheckpoint(FixtureDir("olmoe"));
  ASSERT_TRUE(opened.ok());
  const BrokenSource broken(*opened->source);
  const TempDir temp;
  WriteOptions options;
  options.shard_bytes = 100'000;
  absl::Status status = WriteCheckpoint(broken, temp.File("out"), "{}", options, NoProgress);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(temp.File("out")));
  // An earlier checkpoint in the folder survives.
  ASSERT_TRUE(WriteWidened("olmoe", temp.File("out"), 100'000).ok());
  const std::set<std::string> before = FilesOf(temp.File("out"));
  status = WriteCheckpoint(broken, temp.File("out"), "{}", options, NoProgress);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(FilesOf(temp.File("out")), before);
  EXPECT_TRUE(OpenCheckpoint(temp.File("out")).ok());
}

TEST(WriteCheckpoint, RefusesToWriteOverItsSource) {
  const TempDir temp;
  ASSERT_TRUE(WriteWidened("olmoe", temp.File("out"), 1 << 30).ok());
  const auto opened = OpenCheckpoint(temp.File("out"));
  ASSERT_TRUE(opened.ok());
  WriteOptions options;
  options.copy_from = temp.File("out");
  const absl::Status status =
      WriteCheckpoint(*opened->source, temp.File("out") + "/../out", "{}", options, NoProgress);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("source itself"));
}

}  // namespace
}  // namespace comoe::checkpoint
