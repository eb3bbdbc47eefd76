// Checkpoint folders that are truncated, lie or reach out of themselves: each gives one error that names the
// file and the tensor or field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kNorm = "model.norm.weight";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A folder that a case may spoil, with the fixture's files in it.
struct Folder {
  std::string path;

  std::string File(const std::string& name) const { return path + "/" + name; }
  std::uint64_t HeaderBytes(const std::string& name) const {
    const std::string bytes = ReadText(File(name));
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      length |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    return length;
  }
  Json Header(const std::string& name) const {
    return Json::parse(ReadText(File(name)).substr(8, HeaderBytes(name)));
  }
  // Replaces the header by any text, the data stays.
  void SetHeader(const std::string& header, const std::string& name = kModel) const {
    const std::string data = ReadText(File(name)).substr(8 + HeaderBytes(name));
    WriteText(File(name), SafetensorsBytes(header, data));
  }
  void EditHeader(const std::function<void(Json&)>& edit, const std::string& name = kModel) const {
    Json header = Header(name);
    edit(header);
    SetHeader(header.dump(), name);
  }
  void Cut(std::uint64_t bytes, const std::string& name = kModel) const {
    fs::resize_file(File(name), bytes);
  }
  void EditIndex(const std::function<void(Json&)>& edit) const {
    Json index = Json::parse(ReadText(File(kIndex)));
    edit(index);
    WriteText(File(kIndex), index.dump());
  }
};

struct Case {
  const char* name;
  const char* fixture;
  std::function<void(const Folder&)> spoil;
  std::vector<std::string> says;
};

// Damage to one file of the single-file fixture.
std::vector<Case> SingleFileCases() {
  const char* f = "qwen3_moe_tied";
  const auto header = [](const std::function<void(Json&)>& edit) {
    return [edit](const Folder& folder) { folder.EditHeader(edit); };
  };
  const auto text = [](const std::string& content) {
    return [content](const Folder& d) { d.SetHeader(content); };
  };
  return {
      {"empty file", f, [](const Folder& d) { d.Cut(0); }, {kModel, "header length"}},
      {"seven bytes", f, [](const Folder& d) { d.Cut(7); }, {kModel, "header length"}},
      {"header cut off", f, [](const Folder& d) { d.Cut(100); }, {kModel, "header length", "truncated"}},
      {"data cut off",
       f,
       [](const Folder& d) { d.Cut(fs::file_size(d.File(kModel)) - 1); },
       {kModel, kNorm, "data_offsets", "past the end"}},
      {"data too long",
       f,
       [](const Folder& d) { WriteText(d.File(kModel), ReadText(d.File(kModel)) + "x"); },
       {kModel, "data_offsets", "cover"}},
      {"length beyond file",
       f,
       [](const Folder& d) {
         std::string bytes = ReadText(d.File(kModel));
         bytes[3] = 1;
         WriteText(d.File(kModel), bytes);
       },
       {kModel, "header length is"}},
      {"length beyond the cap",
       f,
       [](const Folder& d) { WriteText(d.File(kModel), std::string(64, '\xff')); },
       {kModel, "header length is 18446744073709551615", "allows"}},
      {"length zero",
       f,
       [](const Folder& d) { WriteText(d.File(kModel), std::string(64, '\0')); },
       {kModel, "'{'"}},
      {"header not JSON", f, text("{nonsense}"), {kModel, "header is not JSON"}},
      {"header cut within", f, text(R"({"a":{"dtype":"F32")"), {kModel, "header is not JSON"}},
      {"header a list", f, text("[]"), {kModel, "'{'"}},
      {"header not UTF-8", f, text("{\"a\xff\":1}"), {kModel, "header is not JSON"}},
      {"header nested", f, text("{\"a\":" + std::string(5000, '[')), {kModel, "tensor 'a'", "a list"}},
      {"nested shape", f, text(R"({"a":{"shape":[[1]]}})"), {kModel, "tensor 'a'", "'shape'"}},
      {"tensor a number", f, text(R"({"a":1})"), {kModel, "tensor 'a'", "number 1"}},
      {"tensor null", f, text(R"({"a":null})"), {kModel, "tensor 'a'", "null"}},
      {"metadata a number", f, text(R"({"__metadata__":{"format":1}})"), {kModel, "__metadata__", "format"}},
      {"metadata twice",
       f,
       text(R"({"__metadata__":{},"__metadata__":{}})"),
       {kModel, "__metadata__", "twice"}},
      {"name with a newline", f, text("{\"a\\nb\":1}"), {kModel, "a\\nb"}},
      {"tensor twice",
       f,
       text(
           R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})"),
       {kModel, "tensor 'a'", "twice"}},
      {"field twice", f, text(R"({"a":{"dtype":"F32","dtype":"F16"}})"), {kModel, "'dtype'", "twice"}},
      {"field unknown", f, text(R"({"a":{"dtyp":"F32"}})"), {kModel, "'a'", "'dtyp'"}},
      {"dtype missing", f, header([](Json& h) { h[kNorm].erase("dtype"); }), {kModel, kNorm, "dtype"}},
      {"shape missing", f, header([](Json& h) { h[kNorm].erase("shape"); }), {kModel, kNorm, "shape"}},
      {"offsets missing",
       f,
       header([](Json& h) { h[kNorm].erase("data_offsets"); }),
       {kModel, kNorm, "data_offsets"}},
      {"dtype unknown",
       f,
       header([](Json& h) { h[kNorm]["dtype"] = "F31"; }),
       {kModel, kNorm, "dtype", "F31"}},
      {"dtype a number", f, header([](Json& h) { h[kNorm]["dtype"] = 3; }), {kModel, kNorm, "dtype"}},
      {"dtype of other size",
       f,
       header([](Json& h) { h[kNorm]["dtype"] = "F32"; }),
       {kModel, kNorm, "dtype", "256 bytes"}},
      {"dtype not readable",
       f,
       header([](Json& h) { h[kNorm]["dtype"] = "I16"; }),
       {kModel, kNorm, "dtype", "I16"}},
      {"shape negative",
       f,
       header([](Json& h) { h[kNorm]["shape"] = {-64}; }),
       {kModel, kNorm, "shape", "-64"}},
      {"shape fraction",
       f,
       header([](Json& h) { h[kNorm]["shape"] = {64.0}; }),
       {kModel, kNorm, "shape", "64.0"}},
      {"shape a text", f, header([](Json& h) { h[kNorm]["shape"] = "64"; }), {kModel, kNorm, "shape"}},
      {"shape overflows",
       f,
       header([](Json& h) {
         h[kNorm]["shape"] = {1LL << 40, 1LL << 40};
       }),
       {kModel, kNorm, "shape", "64 bits"}},
      {"shape wraps to the right size",
       f,
       header([](Json& h) {
         h[kNorm]["shape"] = {(1LL << 62) + 16, 4};
       }),
       {kModel, kNorm, "shape", "64 bits"}},
      {"dimension beyond 63 bits",
       f,
       header([](Json& h) { h[kNorm]["shape"] = {18446744073709551615ULL}; }),
       {kModel, kNorm, "shape", "18446744073709551615"}},
      {"dimension beyond 64 bits",
       f,
       text(R"({"a":{"shape":[99999999999999999999]}})"),
       {kModel, "'a'", "'shape'"}},
      {"too many dimensions",
       f,
       header([](Json& h) { h[kNorm]["shape"] = std::vector<int>(40, 1); }),
       {kModel, kNorm, "shape", "dimensions"}},
      {"offsets backwards",
       f,
       header([](Json& h) {
         h[kNorm]["data_offsets"] = {100, 50};
       }),
       {kModel, kNorm, "data_offsets", "backwards"}},
      {"offsets negative",
       f,
       header([](Json& h) {
         h[kNorm]["data_offsets"] = {-2, 50};
       }),
       {kModel, kNorm, "data_offsets", "-2"}},
      {"offsets past the end",
       f,
       header([](Json& h) { h[kNorm]["data_offsets"][1] = 1LL << 50; }),
       {kModel, kNorm, "data_offsets", "past the end"}},
      {"one offset",
       f,
       header([](Json& h) { h[kNorm]["data_offsets"] = {1}; }),
       {kModel, kNorm, "data_offsets"}},
      {"three offsets",
       f,
       header([](Json& h) {
         h[kNorm]["data_offsets"] = {1, 2, 3};
       }),
       {kModel, kNorm, "data_offsets"}},
      {"overlap",
       f,
       header([](Json& h) {
         h[kNorm]["data_offsets"] = {0, 128};
       }),
       {kModel, "overlap", "data_offsets"}},
      {"gap",
       f,
       header([](Json& h) {
         h["model.layers.0.input_layernorm.weight"] = h[kNorm];  // its own bytes are nobody's now
         h.erase(kNorm);
       }),
       {kModel, "gap", "data_offsets"}},
      {"byte count wrong",
       f,
       header([](Json& h) { h[kNorm]["shape"] = {63}; }),
       {kModel, kNorm, "126 bytes", "give 128"}},
      {"shape wrong",
       f,
       header([](Json& h) {
         h[kNorm]["shape"] = {8, 8};
       }),
       {kModel, kNorm, "shape is [8, 8]", "[64]"}},
      {"tensor missing",
       f,
       header([](Json& h) {
         h["renamed"] = h[kNorm];
         h.erase(kNorm);
       }),
       {"1 tensor is missing", kNorm}},
      {"experts in one tensor",
       f,
       header([](Json& h) {
         h["model.layers.1.mlp.experts.gate_up_proj"] = h[kNorm];
         h.erase(kNorm);
       }),
       {kModel, "experts.gate_up_proj", "one tensor per expert"}},
      {"experts of two dtypes",
       f,
       header([](Json& h) { h["model.layers.2.mlp.experts.3.up_proj.weight"]["dtype"] = "F16"; }),
       {kModel, "experts.3.up_proj.weight", "dtype is F16", "must agree"}},
  };
}

// Damage to the folder around the tensors.
std::vector<Case> FolderCases() {
  const char* shard3 = "model-00003-of-00010.safetensors";
  const char* shards = "mixtral";
  const char* head = "lm_head.weight";
  const auto placed = [](const char* tensor, const Json& where) {
    return [tensor, where](const Folder& d) {
      d.EditIndex([&](Json& index) { index["weight_map"][tensor] = where; });
    };
  };
  return {
      {"folder empty",
       shards,
       [](const Folder& d) {
         for (const auto& e : fs::directory_iterator(d.path)) {
           if (e.path().filename() != "config.json") {
             fs::remove(e.path());
           }
         }
       },
       {"holds neither", kModel, kIndex}},
      {"no config", shards, [](const Folder& d) { fs::remove(d.File("config.json")); }, {"config.json"}},
      {"config a folder",
       shards,
       [](const Folder& d) {
         fs::remove(d.File("config.json"));
         fs::create_directory(d.File("config.json"));
       },
       {"config.json", "regular file"}},
      {"model a folder",
       "qwen3_moe_tied",
       [](const Folder& d) {
         fs::remove(d.File(kModel));
         fs::create_directory(d.File(kModel));
       },
       {kModel, "regular file"}},
      {"model a pipe",
       "qwen3_moe_tied",
       [](const Folder& d) {
         fs::remove(d.File(kModel));
         ASSERT_EQ(::mkfifo(d.File(kModel).c_str(), 0600), 0);
       },
       {kModel, "regular file"}},
      {"shard missing", shards, [shard3](const Folder& d) { fs::remove(d.File(shard3)); }, {shard3, kIndex}},
      {"shard a folder",
       shards,
       [shard3](const Folder& d) {
         fs::remove(d.File(shard3));
         fs::create_directory(d.File(shard3));
       },
       {shard3, "regular file"}},
      {"shard truncated", shards, [shard3](const Folder& d) { d.Cut(900, shard3); }, {shard3, "truncated"}},
      {"index not JSON",
       shards,
       [](const Folder& d) { WriteText(d.File(kIndex), "{"); },
       {kIndex, "not JSON"}},
      {"index empty", shards, [](const Folder& d) { WriteText(d.File(kIndex), ""); }, {kIndex, "not JSON"}},
      {"index without map",
       shards,
       [](const Folder& d) { d.EditIndex([](Json& i) { i.erase("weight_map"); }); },
       {kIndex, "weight_map"}},
      {"map a list",
       shards,
       [](const Folder& d) { d.EditIndex([](Json& i) { i["weight_map"] = Json::array(); }); },
       {kIndex, "weight_map"}},
      {"map empty",
       shards,
       [](const Folder& d) { d.EditIndex([](Json& i) { i["weight_map"] = Json::object(); }); },
       {kIndex, "weight_map", "empty"}},
      {"shard name a number", shards, placed(head, 1), {kIndex, head, "file name"}},
      {"shard above the folder",
       shards,
       placed(head, "../model.safetensors"),
       {kIndex, head, "../model.safetensors"}},
      {"shard absolute", shards, placed(head, "/etc/passwd.safetensors"), {kIndex, head, "/etc/passwd"}},
      {"shard in a subfolder", shards, placed(head, "sub/model.safetensors"), {kIndex, head, "plain name"}},
      {"shard dot dot", shards, placed(head, ".."), {kIndex, head, "plain name"}},
      {"shard of another kind", shards, placed(head, "config.json"), {kIndex, head, "plain name"}},
      {"shard name with a zero",
       shards,
       placed(head, std::string("a\0.safetensors", 14)),
       {kIndex, head, "plain name"}},
      {"tensor in another shard", shards, placed(head, shard3), {head, kIndex, "places it in"}},
      {"tensor not in its shard", shards, placed("ghost.weight", shard3), {kIndex, "ghost.weight", shard3}},
      {"tensor not in the index",
       shards,
       [head](const Folder& d) { d.EditIndex([head](Json& i) { i["weight_map"].erase(head); }); },
       {head, kIndex, "does not list it"}},
      {"tensor in two shards",
       shards,
       [shard3](const Folder& d) {
         d.EditHeader(
             [](Json& h) {
               const Json moved = h["model.layers.0.block_sparse_moe.experts.0.w1.weight"];
               h["model.layers.0.block_sparse_moe.experts.0.w2.weight"] = moved;
               h.erase("model.layers.0.block_sparse_moe.experts.0.w1.weight");
             },
             shard3);
       },
       {shard3, "experts.0.w2.weight", "places it in"}},
      {"config of another model",
       shards,
       [](const Folder& d) {
         fs::copy_file(FixtureDir("olmoe") + "/config.json", d.File("config.json"),
                       fs::copy_options::overwrite_existing);
       },
       {"tensors are missing", "model.layers.0.self_attn.q_norm.weight", ", ..."}},
  };
}

void ExpectRefused(const Case& c) {
  SCOPED_TRACE(c.name);
  const TempDir temp;
  for (const auto& entry : fs::directory_iterator(FixtureDir(c.fixture))) {
    fs::copy_file(entry.path(), temp.File(entry.path().filename().string()));
    fs::permissions(temp.File(entry.path().filename().string()), fs::perms::owner_all);
  }
  ASSERT_TRUE(OpenCheckpoint(temp.path()).ok());
  c.spoil({temp.path()});
  const auto opened = OpenCheckpoint(temp.path());
  ASSERT_FALSE(opened.ok());
  const std::string message(opened.status().message());
  for (const std::string& part : c.says) {
    EXPECT_THAT(message, ::testing::HasSubstr(part));
  }
  EXPECT_THAT(message, ::testing::HasSubstr(temp.path()));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 1500U);
}

TEST(HostileFiles, OneFile) {
  for (const Case& c : SingleFileCases()) {
    ExpectRefused(c);
  }
  EXPECT_GE(SingleFileCases().size(), 40U);
}

TEST(HostileFiles, FolderAndShards) {
  for (const Case& c : FolderCases()) {
    ExpectRefused(c);
  }
}

TEST(HostileFiles, FolderThatIsNone) {
  EXPECT_THAT(std::string(OpenSafetensors("/no/such/folder").status().message()),
              ::testing::HasSubstr("/no/such/folder"));
  const TempDir temp;
  WriteText(temp.File("file"), "x");
  EXPECT_THAT(std::string(OpenSafetensors(temp.File("file")).status().message()),
              ::testing::HasSubstr("not a folder"));
}

TEST(HostileFiles, FolderThatMayNotBeRead) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "the superuser reads every folder";
  }
  const TempDir temp;
  fs::create_directory(temp.File("locked"));
  WriteText(temp.File("locked/model.safetensors"), "x");
  fs::permissions(temp.File("locked"), fs::perms::none);
  const auto opened = OpenSafetensors(temp.File("locked"));
  fs::permissions(temp.File("locked"), fs::perms::owner_all);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(opened.status().message()), ::testing::HasSubstr("locked"));
}

// What looks odd and is allowed.
TEST(SafetensorsFormat, AcceptsWhatTheFormatAllows) {
  const TempDir temp;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"z":{"data_offsets":[0,0],"shape":[0,18446744073],"dtype":"F32"},)"
      R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"odd":{"dtype":"F64","shape":[1],)"
      R"("data_offsets":[4,12]},"fp4":{"dtype":"F4","shape":[4],"data_offsets":[12,14]}}   )";
  WriteText(temp.File(kModel), SafetensorsBytes(header, std::string(14, '\1')));
  const auto source = OpenSafetensors(temp.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->Names(), ::testing::ElementsAre("fp4", "odd", "scalar", "z"));
  EXPECT_EQ((*source)->Find("nothing"), nullptr);
  const auto scalar = (*source)->Read(*(*source)->Find("scalar"));
  ASSERT_TRUE(scalar.ok());
  EXPECT_EQ(scalar->bytes.size(), 4U);
  EXPECT_TRUE((*source)->Read(*(*source)->Find("z"))->bytes.empty());
  const auto odd = (*source)->Read(*(*source)->Find("odd"));
  EXPECT_EQ(odd.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(odd.status().message()), ::testing::HasSubstr("F64"));
}

TEST(SafetensorsFormat, ExtraTensorsAreReportedAndRotaryBuffersIgnored) {
  const TempDir temp;
  fs::copy(FixtureDir("qwen3_moe_tied") + "/config.json", temp.File("config.json"));
  fs::copy_file(FixtureDir("qwen3_moe_tied") + "/model.safetensors", temp.File(kModel));
  fs::permissions(temp.File(kModel), fs::perms::owner_all);
  const Folder folder = {temp.path()};
  const std::uint64_t data = ReadText(temp.File(kModel)).size() - 8 - folder.HeaderBytes(kModel);
  WriteText(temp.File(kModel), ReadText(temp.File(kModel)) + "12345678");
  folder.EditHeader([data](Json& h) {
    h["extra"] = {{"dtype", "I32"}, {"shape", {1}}, {"data_offsets", {data, data + 4}}};
    h["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
        {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {data + 4, data + 8}}};
  });
  const auto opened = OpenCheckpoint(temp.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->report.unexpected, ::testing::ElementsAre("extra"));
}

}  // namespace
}  // namespace comoe::checkpoint
