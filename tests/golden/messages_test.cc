// Bytes of messages that clients of earlier versions send or keep mean what they meant. See README.md.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comoe/v1/inference.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace comoe {
namespace {

using google::protobuf::Message;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Named by the first line of the text: "# comoe.v1.GenerateRequest".
std::unique_ptr<Message> NewMessage(const std::string& text) {
  absl::string_view name = text;
  name.remove_prefix(2);
  name = name.substr(0, name.find('\n'));
  const auto* type =
      v1::GenerateRequest::descriptor()->file()->pool()->FindMessageTypeByName(std::string(name));
  if (type == nullptr) {
    return nullptr;
  }
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

TEST(GoldenMessages, OldBytesMeanWhatTheyMeant) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "protobuf's headers give a map field one member more under ThreadSanitizer, and the installed "
         "libprotobuf, which reads text through reflection, is built without: presets ci and asan run this";
#endif
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  int num_messages = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           absl::StrCat(root != nullptr ? root : ".", "/tests/golden/messages"))) {
    if (entry.path().extension() != ".txtpb") {
      continue;
    }
    ++num_messages;
    const std::string text = ReadFile(entry.path());
    const std::string bytes =
        ReadFile(absl::StrCat((entry.path().parent_path() / entry.path().stem()).string(), ".pb"));
    const std::unique_ptr<Message> expected = NewMessage(text);
    const std::unique_ptr<Message> decoded = NewMessage(text);
    ASSERT_TRUE(expected != nullptr) << entry.path();
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, expected.get())) << entry.path();
    ASSERT_FALSE(bytes.empty()) << entry.path();
    ASSERT_TRUE(decoded->ParseFromString(bytes)) << entry.path();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*expected, *decoded))
        << entry.path() << " decodes to\n"
        << decoded->DebugString();
    EXPECT_EQ(decoded->SerializeAsString(), bytes) << entry.path() << ": it is written differently now";
  }
  EXPECT_GE(num_messages, 5);
}

}  // namespace
}  // namespace comoe
