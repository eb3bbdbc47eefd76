#include "tests/engine/tokenizer/test_support.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "engine/base/mapped_file.h"

namespace comoe::tokenizer {

std::string SourcePath(const std::string& relative) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/" + relative;
}

std::string StyleFile(const std::string& style, const std::string& file) {
  return SourcePath("tests/fixtures/tokenizers/" + style + "/" + file);
}

nlohmann::json ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> content = base::ReadFile(path, 1 << 30);
  EXPECT_TRUE(content.ok()) << content.status();
  return content.ok() ? nlohmann::json::parse(*content, nullptr, false) : nlohmann::json();
}

nlohmann::json SmallTokenizer() {
  return nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": [["a", "b"], ["ab", "c"]]}})");
}

std::unique_ptr<Tokenizer> Make(const nlohmann::json& config) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Parse(config.dump(), "test.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status() << "\n" << config.dump();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

absl::Status LoadError(const std::string& json) { return Tokenizer::Parse(json, "test.json").status(); }
absl::Status LoadError(const nlohmann::json& config) { return LoadError(config.dump()); }

nlohmann::json AddedTokenJson(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", false}};
}

}  // namespace comoe::tokenizer
