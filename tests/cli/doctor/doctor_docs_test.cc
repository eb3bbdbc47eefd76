// docs/TROUBLESHOOTING.md: a row for every id that the doctor has, and tests that are there.
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/doctor_report.h"
#include "engine/base/mapped_file.h"
#include "gtest/gtest.h"

namespace comoe::cli {
namespace {

// Lines of tables, cut into cells.
std::vector<std::vector<std::string>> Rows() {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  const absl::StatusOr<std::string> text =
      base::ReadFile(absl::StrCat(root == nullptr ? "." : root, "/docs/TROUBLESHOOTING.md"), 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  std::vector<std::vector<std::string>> rows;
  for (const absl::string_view line : absl::StrSplit(text.ok() ? *text : "", '\n')) {
    if (absl::StartsWith(line, "| ") && !absl::StartsWith(line, "| symptom")) {
      rows.push_back(absl::StrSplit(line, '|'));
    }
  }
  return rows;
}

// What stands between backquotes.
std::vector<std::string> Quoted(const std::string& cell) {
  const std::vector<std::string> parts = absl::StrSplit(cell, '`');
  std::vector<std::string> quoted;
  for (std::size_t i = 1; i < parts.size(); i += 2) {
    quoted.push_back(parts[i]);
  }
  return quoted;
}

TEST(DoctorDocsTest, EveryIdHasARow) {
  std::set<std::string> ids;
  for (const std::vector<std::string>& row : Rows()) {
    for (const std::string& cell : row) {
      for (const std::string& quoted : Quoted(cell)) {
        ids.insert(quoted);
      }
    }
  }
  for (const absl::string_view id : FindingIds()) {
    EXPECT_TRUE(ids.count(std::string(id)) > 0) << id << " has no row in docs/TROUBLESHOOTING.md";
  }
}

TEST(DoctorDocsTest, EveryTestThatARowNamesExists) {
  std::set<std::string> tests;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      tests.insert(absl::StrCat(suite.name(), ".", suite.GetTestInfo(t)->name()));
    }
  }
  int named = 0;
  for (const std::vector<std::string>& row : Rows()) {
    ASSERT_EQ(row.size(), 7U) << "five cells: " << row[1];
    for (const std::string& name : Quoted(row[5])) {
      EXPECT_TRUE(tests.count(name) > 0) << name << " is no test of this program";
      ++named;
    }
  }
  EXPECT_GT(named, 15);
}

}  // namespace
}  // namespace comoe::cli
