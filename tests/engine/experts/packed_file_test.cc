// The file of all experts: what is read is what was packed, and what is damaged, cut or of another model is
// noticed.
#include "engine/experts/packed_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "tests/engine/experts/test_util.h"

namespace comoe::experts {
namespace {

void NoProgress(std::uint64_t, std::uint64_t) {}

PackedFileSource Source(std::uint64_t hash = 1) {
  return {*Model().source, Model().config, *Model().names, tensor::DType::kBf16, hash};
}

struct FreeAligned {
  void operator()(std::byte* data) const { std::free(data); }
};
using Target = std::unique_ptr<std::byte, FreeAligned>;

Target MakeTarget(const PackedFile& file) {
  return Target(static_cast<std::byte*>(std::aligned_alloc(kFileAlignment, file.read_bytes())));
}

void Flip(const std::string& path, std::uint64_t offset) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  char byte = 0;
  ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(offset)), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
  ::close(fd);
}

class PackedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = directory_.File("experts.packed");
    ASSERT_TRUE(PackedFile::Write(path_, Source(), Model().pool, NoProgress).ok());
  }
  absl::StatusCode OpenCode(std::uint64_t hash = 1) {
    return PackedFile::Open(path_, Source(hash)).status().code();
  }
  checkpoint::TempDir directory_;
  std::string path_;
};

TEST_F(PackedFileTest, HoldsWhatWasPacked) {
  auto file = PackedFile::Open(path_, Source());
  ASSERT_TRUE(file.ok()) << file.status();
  std::cout << "direct I/O: " << ((*file)->direct() ? "yes" : "refused here") << "\n";
  EXPECT_EQ(std::filesystem::file_size(path_), (*file)->size_bytes());
  const Target target = MakeTarget(**file);
  for (const base::ExpertKey key : Model().keys()) {
    ASSERT_TRUE((*file)->Read(key, target.get()).ok());
    EXPECT_EQ(std::memcmp(target.get(), Model().Blob(key).data(), Model().Blob(key).size()), 0);
  }
  EXPECT_EQ((*file)->Read({0, 0}, target.get()).code(), absl::StatusCode::kNotFound);
  std::uint64_t last = 0;
  EXPECT_TRUE((*file)->VerifyAll([&](std::uint64_t done, std::uint64_t) { last = done; }).ok());
  EXPECT_EQ(last, (*file)->index().total_bytes());
}

TEST_F(PackedFileTest, ABrokenBlobIsNamed) {
  auto file = PackedFile::Open(path_, Source());
  ASSERT_TRUE(file.ok());
  const base::ExpertKey key{2, 3};
  Flip(path_,
       (*file)->size_bytes() - (*file)->index().total_bytes() + (*file)->index().Find(key)->offset + 9);
  const Target target = MakeTarget(**file);
  const absl::Status read = (*file)->Read(key, target.get());
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()), ::testing::HasSubstr("layer 2 expert 3"));
  EXPECT_TRUE((*file)->Read({2, 4}, target.get()).ok());
  EXPECT_EQ((*file)->VerifyAll(NoProgress).code(), absl::StatusCode::kDataLoss);
  // Without verification it is opened as it is, with it is written anew.
  EXPECT_TRUE(PackedFile::OpenOrBuild(path_, Source(), false, Model().pool, NoProgress).ok());
  auto again = PackedFile::OpenOrBuild(path_, Source(), true, Model().pool, NoProgress);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE((*again)->VerifyAll(NoProgress).ok());
}

TEST_F(PackedFileTest, DamageAndOtherModelsAreSeenAndRepaired) {
  const std::uint64_t size = std::filesystem::file_size(path_);
  const auto expect_repaired = [&](const char* what) {
    SCOPED_TRACE(what);
    EXPECT_TRUE(PackedFile::OpenOrBuild(path_, Source(), false, Model().pool, NoProgress).ok());
    EXPECT_EQ(OpenCode(), absl::StatusCode::kOk);
  };
  Flip(path_, 96 + 24);  // a checksum in the index
  EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss);
  expect_repaired("index");
  Flip(path_, 0);
  EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss);
  expect_repaired("magic");
  Flip(path_, 8);
  EXPECT_EQ(OpenCode(), absl::StatusCode::kFailedPrecondition);
  expect_repaired("version");
  EXPECT_EQ(OpenCode(2), absl::StatusCode::kFailedPrecondition);
  for (const std::uint64_t cut :
       {size - 1, size / 2, std::uint64_t{100}, std::uint64_t{10}, std::uint64_t{0}}) {
    std::filesystem::resize_file(path_, cut);
    EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss) << cut;
    expect_repaired("cut");
  }
  std::filesystem::resize_file(path_, size + 1);
  EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss);
  expect_repaired("longer");
  std::filesystem::remove(path_);
  EXPECT_EQ(OpenCode(), absl::StatusCode::kNotFound);
  expect_repaired("absent");
}

TEST_F(PackedFileTest, OtherSettingsAreStale) {
  checkpoint::ModelConfig wider = Model().config;
  wider.expert_intermediate = 32;
  EXPECT_EQ(PackedFile::Open(path_, {*Model().source, wider, *Model().names, tensor::DType::kBf16, 1})
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(PackedFile::Open(path_, {*Model().source, Model().config, *Model().names, tensor::DType::kF16, 1})
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(PackedFileTest, FailedWritesLeaveNothing) {
  const std::string nowhere = directory_.File("no/such/folder");
  EXPECT_FALSE(PackedFile::Write(nowhere, Source(), Model().pool, NoProgress).ok());
  checkpoint::RandomSource broken(Model().config, tensor::DType::kBf16, 5);
  broken.infos().erase(Model().names->Expert({3, 7}).down);
  const std::string path = directory_.File("other");
  EXPECT_FALSE(PackedFile::Write(path, {broken, Model().config, *Model().names, tensor::DType::kBf16, 1},
                                 Model().pool, NoProgress)
                   .ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 1);
}

TEST(ModelHash, IsTheWeights) {
  const auto hash = [](std::uint64_t seed) {
    const checkpoint::RandomSource source(Model().config, tensor::DType::kBf16, seed);
    return *ModelHash(source, Model().config, *Model().names);
  };
  EXPECT_EQ(hash(1), hash(1));
  EXPECT_NE(hash(1), hash(2));
}

}  // namespace
}  // namespace comoe::experts
