// NumPy arrays: the routing traces of the trained models, and files that lie.
#include "engine/checkpoint/numpy_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zip.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Npy(const std::string& header, const std::string& data, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += version;
  bytes += '\0';
  for (std::size_t i = 0; i < (version == 1 ? 2U : 4U); ++i) {
    bytes += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  }
  return bytes + header + data;
}

absl::StatusOr<NumpyArray> Parse(const std::string& bytes) {
  return ParseNpy({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
                  "trace.npz: array 'x.npy'");
}

void WriteNpz(const std::string& path, const std::vector<std::pair<std::string, std::string>>& entries) {
  int code = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  ASSERT_NE(archive, nullptr);
  for (const auto& [name, content] : entries) {
    zip_source_t* source = zip_source_buffer(archive, content.data(), content.size(), 0);
    ASSERT_GE(zip_file_add(archive, name.c_str(), source, 0), 0);
  }
  ASSERT_EQ(zip_close(archive), 0);
}

TEST(ParseNpy, ReadsEveryDTypeAndVersion) {
  const auto u8 =
      Parse(Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }   \n", "\1\2\3\4\5\xff"));
  ASSERT_TRUE(u8.ok()) << u8.status();
  EXPECT_EQ(u8->dtype, NumpyDType::kU8);
  EXPECT_THAT(u8->shape, ElementsAre(2, 3));
  EXPECT_EQ(u8->IntegerAt(5), 255);
  const auto u16 =
      Parse(Npy("{'shape': (1,), 'descr': '<u2', 'fortran_order': False}", std::string("\x34\x12", 2), 2));
  ASSERT_TRUE(u16.ok()) << u16.status();
  EXPECT_EQ(u16->IntegerAt(0), 0x1234);
  const auto i32 =
      Parse(Npy("{'descr': '<i4', 'fortran_order': False, 'shape': (), }", "\xfe\xff\xff\xff", 3));
  ASSERT_TRUE(i32.ok()) << i32.status();
  EXPECT_EQ(i32->IntegerAt(0), -2);
  EXPECT_TRUE(i32->shape.empty());
  const auto i64 = Parse(Npy("{'descr':'<i8','fortran_order':False,'shape':(0,5),}", ""));
  ASSERT_TRUE(i64.ok()) << i64.status();
  EXPECT_EQ(i64->num_elements(), 0);
  EXPECT_TRUE(Parse(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "abcd")).ok());
}

TEST(ParseNpy, RefusesWhatLies) {
  const std::string good = "{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "NumPy array"},
      {"\x93NUMPZ\1aaaaaaa", "NumPy array"},
      {Npy(good, "abcd").substr(0, 30), "header length"},
      {Npy(good, "abcd", 9), "version"},
      {Npy(good, "abc"), "need 4 bytes, 3 follow"},
      {Npy(good, "abcde"), "need 4 bytes, 5 follow"},
      {Npy("{'descr': '>u2', 'fortran_order': False, 'shape': (2,), }", "abcd"), "descr"},
      {Npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "abcd"), "descr"},
      {Npy("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (2,), }", "abcd"), "descr"},
      {Npy("{'descr': '|u1', 'fortran_order': True, 'shape': (4,), }", "abcd"), "fortran_order"},
      {Npy("{'descr': '|u1', 'fortran_order': 0, 'shape': (4,), }", "abcd"), "fortran_order"},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': 4, }", "abcd"), "shape"},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-4,), }", "abcd"), "shape"},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4 4), }", "abcd"), "shape"},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,), }", "abcd"), "shape"},
      {Npy("{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904, 8), }", "abcd"),
       "64 bits"},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4,), }",
           "abcd"),
       "dimensions"},
      {Npy("{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (4,), }", "abcd"), "descr"},
      {Npy("{'descr': '|u1', 'shape': (4,), }", "abcd"), "lacks"},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4,), 'more': 1}", "abcd"), "more"},
      {Npy(good + "x", "abcd"), "after its dict"},
      {Npy("['descr']", "abcd"), "no dict"},
      {Npy("{'descr", "abcd"), "quoted key"},
      {Npy("{", "abcd"), "quoted key"},
  };
  for (const auto& [bytes, says] : cases) {
    const auto array = Parse(bytes);
    ASSERT_FALSE(array.ok()) << says;
    EXPECT_THAT(std::string(array.status().message()), HasSubstr(says));
    EXPECT_THAT(std::string(array.status().message()), HasSubstr("trace.npz: array 'x.npy'"));
  }
}

TEST(ReadNpz, ReadsWhatWasWrittenAndCapsWhatItUnpacks) {
  const TempDir temp;
  const std::string zeros(1 << 20, '\0');
  WriteNpz(temp.File("t.npz"),
           {{"ids.npy", Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }", "abcd")},
            {"big.npy", Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1024, 1024), }", zeros)}});
  const auto arrays = ReadNpz(temp.File("t.npz"), 2 << 20);
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  EXPECT_EQ(arrays->size(), 2U);
  EXPECT_EQ(arrays->at("ids").IntegerAt(3), 'd');
  EXPECT_EQ(arrays->at("big").bytes.size(), zeros.size());
  const auto bomb = ReadNpz(temp.File("t.npz"), 100'000);
  EXPECT_EQ(bomb.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(bomb.status().message()), HasSubstr("big.npy"));
}

TEST(ReadNpz, RefusesWhatIsNoArchive) {
  const TempDir temp;
  WriteText(temp.File("text.npz"), "not a zip archive");
  WriteText(temp.File("empty.npz"), "");
  WriteNpz(temp.File("other.npz"), {{"readme.txt", "hello"}});
  WriteNpz(temp.File("ok.npz"),
           {{"a.npy", Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }", "abcd")}});
  const std::string good = ReadText(temp.File("ok.npz"));
  WriteText(temp.File("cut.npz"), good.substr(0, good.size() / 2));
  std::string flipped = good;
  flipped[60] = static_cast<char>(flipped[60] ^ 0x5a);  // within the packed bytes of a.npy
  WriteText(temp.File("flipped.npz"), flipped);
  for (const char* name : {"text.npz", "empty.npz", "other.npz", "cut.npz", "flipped.npz", "absent.npz"}) {
    const auto arrays = ReadNpz(temp.File(name), 1 << 20);
    ASSERT_FALSE(arrays.ok()) << name;
    EXPECT_THAT(std::string(arrays.status().message()), HasSubstr(name));
  }
}

TEST(ReadNpz, RoutingTracesOfTheTrainedModels) {
  struct Trace {
    const char* model;
    std::int64_t layers, experts_per_token, num_experts;
    std::size_t arrays;
  };
  for (const Trace& trace : {Trace{"moe-32x4-demo", 8, 4, 32, 3}, Trace{"moe-64x2", 12, 2, 64, 6}}) {
    const std::string directory = TrainedModelDir(trace.model);
    if (directory.empty() || ReadText(directory + "/routing_trace.npz").empty()) {
      continue;
    }
    const auto arrays = ReadNpz(directory + "/routing_trace.npz", std::uint64_t{1} << 28);
    ASSERT_TRUE(arrays.ok()) << arrays.status();
    EXPECT_EQ(arrays->size(), trace.arrays);
    const NumpyArray& ids = arrays->at("ids");
    EXPECT_EQ(ids.dtype, NumpyDType::kU16);
    EXPECT_THAT(ids.shape, ElementsAre(96, 512));
    const NumpyArray& experts = arrays->at("experts");
    EXPECT_EQ(experts.dtype, NumpyDType::kU8);
    EXPECT_THAT(experts.shape, ElementsAre(96, 512, trace.layers, trace.experts_per_token));
    for (std::int64_t i = 0; i < experts.num_elements(); i += 997) {
      ASSERT_LT(experts.IntegerAt(i), trace.num_experts);
    }
  }
}

}  // namespace
}  // namespace comoe::checkpoint
