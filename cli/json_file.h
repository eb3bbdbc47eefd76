// JSON documents that people hand to the program: parsed without exceptions, fields fetched with a clear
// error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path);

// The array of token ids at `value`, each in [0, vocab_size). `where` is what messages call it.
absl::StatusOr<std::vector<base::TokenId>> TokenIds(const nlohmann::json& value, std::int32_t vocab_size,
                                                    const std::string& where);

}  // namespace comoe::cli
