// What the tests of engine/tokenizer share: where fixtures are, and small tokenizers written as JSON.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace comoe::tokenizer {

std::string SourcePath(const std::string& relative);
inline constexpr const char* kStyles[] = {"added_token_flags_style",
                                          "deepseek_style",
                                          "gpt2_style",
                                          "ignore_merges_style",
                                          "llama3_style",
                                          "o200k_style",
                                          "qwen_style",
                                          "spm_metaspace_style",
                                          "spm_normalizer_style"};
std::string StyleFile(const std::string& style, const std::string& file);
nlohmann::json ReadJson(const std::string& path);

// A tokenizer with no components around a BPE model of "a" "b" "c" "ab" "abc" with merges a+b, ab+c.
nlohmann::json SmallTokenizer();
// Must load.
std::unique_ptr<Tokenizer> Make(const nlohmann::json& config);
// Must not load: the error.
absl::Status LoadError(const nlohmann::json& config);
absl::Status LoadError(const std::string& json);

nlohmann::json AddedTokenJson(int id, const std::string& content);

}  // namespace comoe::tokenizer
