// Reads tokenizer.json. The vocabulary and the merges are most of the file (hundreds of thousands of
// strings), so they go straight from the parser into flat arrays; the small rest becomes a document. Internal
// to the folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace comoe::tokenizer {

// Limits of what is read. The largest public tokenizer.json has 262 thousand tokens and 34 MB.
inline constexpr std::size_t kMaxTokenizerFileBytes = std::size_t{512} << 20;
inline constexpr std::int32_t kMaxTokenId = (1 << 21) - 1;
inline constexpr int kMaxJsonDepth = 48;
inline constexpr std::size_t kMaxJsonValues = 4'000'000;  // outside of vocabulary and merges

// Part of TokenizerFile::strings.
struct StringSlice {
  std::size_t begin = 0;
  std::uint32_t size = 0;
};

struct TokenizerFile {
  std::string name;        // how errors call the file
  nlohmann::json root;     // without model.vocab and model.merges
  bool has_vocab = false;  // model.vocab is an object of ids, in `vocab`
  bool has_merges = false;

  std::string strings;
  struct VocabEntry {
    StringSlice token;
    std::int32_t id = 0;
  };
  std::vector<VocabEntry> vocab;  // in file order, ids in [0, kMaxTokenId], not yet checked for repetition
  struct Merge {
    StringSlice left, right;
  };
  std::vector<Merge> merges;  // best first

  absl::string_view Text(StringSlice slice) const {
    return absl::string_view(strings).substr(slice.begin, slice.size);
  }
};

// Refuses what is no JSON, not UTF-8, nested too deep, too large, or repeats a key; and ids and merges that
// are not of the right type and range. Every error begins with `name` and, where there is one, the field.
absl::StatusOr<TokenizerFile> ReadTokenizerFile(absl::string_view json, absl::string_view name);

}  // namespace comoe::tokenizer
