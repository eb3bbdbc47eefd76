#include "engine/base/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::base {
namespace {

using ::testing::HasSubstr;

// A folder of this test's own, removed with what it was told of.
class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = absl::StrCat(::testing::TempDir(), "/comoe_mapped_file_XXXXXX");
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  void TearDown() override {
    for (const char* name : {"file", "empty", "pipe", "large"}) {
      ::unlink(Path(name).c_str());
    }
    EXPECT_EQ(::rmdir(folder_.c_str()), 0) << "something was left behind in " << folder_;
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }

  std::string folder_;
};

std::string Text(absl::Span<const std::byte> bytes) {
  std::string text;
  std::transform(bytes.begin(), bytes.end(), std::back_inserter(text),
                 [](std::byte b) { return static_cast<char>(b); });
  return text;
}

TEST_F(MappedFileTest, MapsWhatTheFileHolds) {
  const std::string path = Write("file", std::string("some\0bytes", 10));
  const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->path(), path);
  EXPECT_EQ(Text((*file)->bytes()), std::string("some\0bytes", 10));
}

TEST_F(MappedFileTest, HoldsTheFileThoughItIsUnlinkedOrReplaced) {
  const std::string path = Write("file", "old");
  const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(WriteFileAtomically(path, "new, and longer").ok());
  EXPECT_EQ(Text((*file)->bytes()), "old");
  EXPECT_EQ(*ReadFile(path, 100), "new, and longer");
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) {
  const std::string path = Write("empty", "");
  const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->bytes().empty());
  (*file)->DropPages(0, 4096);
  EXPECT_EQ(*ReadFile(path, 0), "");
}

TEST_F(MappedFileTest, DroppedPagesCanBeReadAgain) {
  std::string content(20000, 'x');
  content[9000] = 'y';
  const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(Write("file", content));
  ASSERT_TRUE(file.ok());
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{19999}}) {
    (*file)->DropPages(offset, 12000);
    EXPECT_EQ(Text((*file)->bytes()), content);
  }
}

TEST_F(MappedFileTest, RefusesWhatIsNoReadableFileAndNamesIt) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  struct Case {
    std::string path;
    absl::StatusCode code;
  };
  for (const Case& test :
       {Case{Path("missing"), absl::StatusCode::kNotFound}, Case{folder_, absl::StatusCode::kInvalidArgument},
        Case{Path("pipe"), absl::StatusCode::kInvalidArgument}}) {
    const absl::Status mapped = MappedFile::Open(test.path).status();
    EXPECT_EQ(mapped.code(), test.code) << mapped;
    EXPECT_THAT(std::string(mapped.message()), HasSubstr(test.path));
    EXPECT_EQ(ReadFile(test.path, 100).status().code(), test.code);
  }
}

TEST_F(MappedFileTest, ReadsUpToALimit) {
  const std::string path = Write("large", std::string(5000, 'z'));
  EXPECT_EQ(ReadFile(path, 5000)->size(), 5000U);
  const absl::Status refused = ReadFile(path, 4999).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(path));
}

TEST_F(MappedFileTest, WritesWholeFilesOrNone) {
  const std::string content = absl::StrCat("a", std::string(1, '\0'), std::string(100000, 'b'));
  ASSERT_TRUE(WriteFileAtomically(Path("file"), content).ok());
  EXPECT_EQ(*ReadFile(Path("file"), 1 << 20), content);
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "").ok());
  EXPECT_EQ(*ReadFile(Path("file"), 0), "");
  // No folder; and a folder where the file shall go: TearDown sees that nothing temporary stays.
  EXPECT_EQ(WriteFileAtomically(Path("missing/file"), "x").code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(WriteFileAtomically(folder_, "x").ok());
}

}  // namespace
}  // namespace comoe::base
