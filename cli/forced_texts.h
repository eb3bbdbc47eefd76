// Texts that a model is fed whatever it would say, for studies of routing: what a small model says by itself
// loops, and its routing with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"

namespace CLI {
class App;
}  // namespace CLI

namespace comoe::cli {

using Texts = std::vector<std::vector<base::TokenId>>;  // [text][token]

struct TextFlags {
  std::string ids;   // --force-ids
  std::string text;  // --text

  // Of either; "": neither was given.
  const std::string& path() const { return text.empty() ? ids : text; }
};

// --force-ids | --text. `by_default`, in words: what is read when neither is given.
void AddTextFlags(CLI::App& app, TextFlags& flags, const std::string& by_default);

// What the flags name. `model`: the folder whose tokenizer.json makes tokens of plain text.
absl::StatusOr<Texts> ReadTexts(const TextFlags& flags, const std::string& model, std::int32_t vocab_size);

// The ids of a routing trace (.npz, or a file of `comoe trace record`), or of JSON {"ids": [[id, ...], ...]}.
absl::StatusOr<Texts> ReadForcedIds(const std::string& path, std::int32_t vocab_size);

}  // namespace comoe::cli
