// docs/TUNING.md holds the registry's table, as it is now.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "scheduler/routing/parameters.h"

namespace comoe::routing {
namespace {

constexpr char kMark[] =
    "<!-- the table below is made by tuning_doc_test: COMOE_UPDATE_DOCS=1 rewrites it -->\n\n";

std::string Document(const std::string& name) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return std::string(root != nullptr ? root : ".") + "/docs/" + name;
}

std::string Read(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

TEST(TuningDocTest, NamesMetricsThatThereAre) {
  const std::string metrics = Read(Document("METRICS.md"));
  for (const ParameterInfo& info : HubParameterTable()) {
    EXPECT_NE(metrics.find(std::string("`") + info.metric + "`"), std::string::npos)
        << info.name << " is to be watched by " << info.metric;
  }
}

TEST(TuningDocTest, HasTheTableOfTheRegistry) {
  const std::string path = Document("TUNING.md");
  const std::string text = Read(path);
  const std::size_t mark = text.find(kMark);
  ASSERT_NE(mark, std::string::npos) << path;
  const std::string expected = text.substr(0, mark) + kMark + HubParameterDocumentation();
  if (std::getenv("COMOE_UPDATE_DOCS") != nullptr) {
    std::ofstream(path, std::ios::trunc) << expected;
    return;
  }
  EXPECT_EQ(text, expected) << "run this test with COMOE_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace comoe::routing
