// Everything of the API that the golden descriptors have is still there, unchanged. See README.md.
#include "google/protobuf/descriptor.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comoe/v1/admin.pb.h"
#include "comoe/v1/inference.pb.h"
#include "comoe/v1/model.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"

namespace comoe {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kHowToUpdate[] =
    "If the change is meant (it breaks clients), write the golden file anew from the repository's root:\n"
    "  protoc --proto_path=proto --include_imports --descriptor_set_out=tests/golden/comoe_v1.desc "
    "comoe/v1/admin.proto comoe/v1/inference.proto comoe/v1/model.proto";

// All that a field is on the wire, in JSON and in generated code.
std::string Describe(const FieldDescriptor& field) {
  const std::string type = field.type() == FieldDescriptor::TYPE_MESSAGE ? field.message_type()->full_name()
                           : field.type() == FieldDescriptor::TYPE_ENUM  ? field.enum_type()->full_name()
                                                                         : std::string(field.type_name());
  return absl::StrCat(field.is_map()        ? "map "
                      : field.is_repeated() ? "repeated "
                                            : "",
                      field.has_optional_keyword() ? "optional " : "", type, " ", field.name(),
                      field.is_packed() ? " (packed)" : "",
                      field.real_containing_oneof() != nullptr
                          ? absl::StrCat(" in oneof ", field.real_containing_oneof()->name())
                          : "");
}

std::string Describe(const MethodDescriptor& method) {
  return absl::StrCat(method.client_streaming() ? "stream " : "", method.input_type()->full_name(), " -> ",
                      method.server_streaming() ? "stream " : "", method.output_type()->full_name());
}

// Compares golden descriptors with those of `now` and keeps a line for each that differs.
class Comparison {
 public:
  explicit Comparison(const DescriptorPool& now) : now_(now) {}

  void File(const FileDescriptor& golden) {
    for (int i = 0; i < golden.message_type_count(); ++i) {
      Message(*golden.message_type(i));
    }
    for (int i = 0; i < golden.enum_type_count(); ++i) {
      Enum(*golden.enum_type(i));
    }
    for (int i = 0; i < golden.service_count(); ++i) {
      Service(*golden.service(i));
    }
  }
  const std::vector<std::string>& differences() const { return differences_; }

 private:
  void Differ(const std::string& what, const std::string& was, const std::string& is) {
    differences_.push_back(
        absl::StrCat(what, ": was '", was, "', is ", is.empty() ? "gone" : "'" + is + "'"));
  }

  void Message(const Descriptor& golden) {
    const Descriptor* message = now_.FindMessageTypeByName(golden.full_name());
    if (message == nullptr) {
      Differ(golden.full_name(), "message", "");
      return;
    }
    for (int i = 0; i < golden.field_count(); ++i) {
      const FieldDescriptor& was = *golden.field(i);
      const FieldDescriptor* is = message->FindFieldByNumber(was.number());
      const std::string now = is == nullptr ? "" : Describe(*is);
      if (now != Describe(was)) {
        Differ(absl::StrCat(golden.full_name(), ", field ", was.number()), Describe(was), now);
      }
    }
    for (int i = 0; i < golden.nested_type_count(); ++i) {
      Message(*golden.nested_type(i));
    }
    for (int i = 0; i < golden.enum_type_count(); ++i) {
      Enum(*golden.enum_type(i));
    }
  }

  void Enum(const EnumDescriptor& golden) {
    const EnumDescriptor* type = now_.FindEnumTypeByName(golden.full_name());
    for (int i = 0; i < golden.value_count(); ++i) {
      const auto& was = *golden.value(i);
      const auto* is = type == nullptr ? nullptr : type->FindValueByNumber(was.number());
      if (is == nullptr || is->name() != was.name()) {
        Differ(absl::StrCat(golden.full_name(), ", value ", was.number()), was.name(),
               is == nullptr ? "" : is->name());
      }
    }
  }

  void Service(const ServiceDescriptor& golden) {
    const ServiceDescriptor* service = now_.FindServiceByName(golden.full_name());
    for (int i = 0; i < golden.method_count(); ++i) {
      const MethodDescriptor& was = *golden.method(i);
      const MethodDescriptor* is = service == nullptr ? nullptr : service->FindMethodByName(was.name());
      const std::string now = is == nullptr ? "" : Describe(*is);
      if (now != Describe(was)) {
        Differ(was.full_name(), Describe(was), now);
      }
    }
  }

  const DescriptorPool& now_;
  std::vector<std::string> differences_;
};

std::vector<std::string> Differences(const FileDescriptorSet& golden) {
  DescriptorPool pool;
  Comparison comparison(*DescriptorPool::generated_pool());
  for (const FileDescriptorProto& file : golden.file()) {
    const FileDescriptor* built = pool.BuildFile(file);
    EXPECT_NE(built, nullptr) << file.name();
    if (built != nullptr && built->package() == "comoe.v1") {
      comparison.File(*built);
    }
  }
  return comparison.differences();
}

FileDescriptorSet ReadGolden() {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  std::ifstream file(std::string(root != nullptr ? root : ".") + "/tests/golden/comoe_v1.desc",
                     std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  FileDescriptorSet golden;
  EXPECT_TRUE(!bytes.empty() && golden.ParseFromString(bytes));
  return golden;
}

FileDescriptorProto& InferenceFile(FileDescriptorSet& set) {
  for (FileDescriptorProto& file : *set.mutable_file()) {
    if (file.name() == "comoe/v1/inference.proto") {
      return file;
    }
  }
  ADD_FAILURE() << "the golden file has no inference.proto";
  return *set.add_file();
}

TEST(GoldenDescriptor, NothingThatClientsKnowHasChanged) {
  // Generated code registers itself when it is linked, which using it makes sure of.
  ASSERT_NE(v1::GenerateRequest::descriptor(), nullptr);
  ASSERT_NE(v1::GetServerInfoResponse::descriptor(), nullptr);
  ASSERT_NE(v1::ModelInfo::descriptor(), nullptr);
  const FileDescriptorSet golden = ReadGolden();
  EXPECT_GE(golden.file_size(), 3);
  const std::vector<std::string> differences = Differences(golden);
  EXPECT_THAT(differences, IsEmpty()) << absl::StrJoin(differences, "\n") << "\n" << kHowToUpdate;
}

// The comparison sees what it is there for.
TEST(GoldenDescriptor, AChangeIsSeen) {
  FileDescriptorSet golden = ReadGolden();
  FileDescriptorProto& file = InferenceFile(golden);
  auto& message = *file.mutable_message_type(0);  // GenerateRequest
  message.mutable_field(0)->set_name("was_called_so");
  auto* gone = message.add_field();
  gone->set_name("gone");
  gone->set_number(900);
  gone->set_type(google::protobuf::FieldDescriptorProto::TYPE_STRING);
  gone->set_label(google::protobuf::FieldDescriptorProto::LABEL_OPTIONAL);
  file.mutable_enum_type(0)->mutable_value(1)->set_name("FINISH_REASON_OTHER");
  file.mutable_service(0)->mutable_method(0)->set_server_streaming(true);
  file.mutable_service(0)->mutable_method(1)->set_name("Gone");
  const std::vector<std::string> differences = Differences(golden);
  EXPECT_THAT(differences, Contains("comoe.v1.GenerateRequest, field 1: was 'string was_called_so', is "
                                    "'string request_id'"));
  EXPECT_THAT(differences, Contains("comoe.v1.GenerateRequest, field 900: was 'string gone', is gone"));
  EXPECT_THAT(differences, Contains(HasSubstr("'FINISH_REASON_OTHER', is 'FINISH_REASON_STOP_EOS'")));
  EXPECT_THAT(differences, Contains(HasSubstr("was 'comoe.v1.GenerateRequest -> stream")));
  EXPECT_THAT(differences, Contains(HasSubstr("InferenceService.Gone")));
}

}  // namespace
}  // namespace comoe
