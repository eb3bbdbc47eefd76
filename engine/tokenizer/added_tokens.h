// Added tokens: strings that are cut out of a text before the model sees it, each with its own rules.
//
// Tokens that are not `normalized` are looked for in the text as it came; the others, in their own normalised
// form, in what lies between once that is normalised. Matches are leftmost, the longest of those first,
// without overlap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/json_fields.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenized.h"

namespace comoe::tokenizer {

struct AddedToken {
  base::TokenId id = 0;
  std::string content;
  std::string decoded;  // what decoders get: the normalised content of a normalised token
  bool single_word = false;
  bool strip_left = false;
  bool strip_right = false;
  bool normalized = false;
  bool special = false;
};

// A set of strings; finds the longest that begins at a place. A walk costs the length of what it matches, and
// a byte that begins no string costs one look-up, however many strings there are.
class StringTrie {
 public:
  StringTrie() { root_.fill(0); }
  // False when the set has it already. `text` is not empty.
  bool Insert(absl::string_view text, std::uint32_t value);
  bool empty() const { return values_.size() == 1; }

  struct Match {
    std::size_t end = 0;
    std::uint32_t value = 0;
  };
  std::optional<Match> FindLongest(absl::string_view text, std::size_t begin) const;

 private:
  static constexpr std::uint32_t kNoValue = UINT32_MAX;
  std::array<std::uint32_t, 256> root_;                         // by first byte: a node, or 0
  absl::flat_hash_map<std::uint64_t, std::uint32_t> children_;  // node << 8 | byte -> node
  std::vector<std::uint32_t> values_ = {kNoValue};              // by node
};

// Immutable and thread-safe.
class AddedTokens {
 public:
  // `field` is the "added_tokens" array. An id must be the one that the vocabulary gives the token or, for
  // new tokens, the next one behind it in file order: the reference assigns them so and ignores what the file
  // says.
  static absl::StatusOr<AddedTokens> Parse(const JsonField& field, const BpeModel& model,
                                           const Normalizer* normalizer);

  enum class Set { kRaw, kNormalized };
  bool empty(Set set) const { return trie(set).empty(); }
  // Cuts `text` (not empty) at the tokens of `set`. The pieces cover it, except that a token may take white
  // space that another has taken already.
  void Find(Set set, absl::string_view text, std::vector<Piece>* pieces) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* FindId(base::TokenId id) const;
  const AddedToken* FindContent(absl::string_view content) const;
  // Whether decoding leaves the id out when special tokens are skipped.
  bool IsSpecial(base::TokenId id) const;

 private:
  const StringTrie& trie(Set set) const { return set == Set::kRaw ? raw_ : normalized_; }

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<base::TokenId, std::uint32_t> by_id_;
  absl::flat_hash_map<std::string, std::uint32_t> by_content_;
  StringTrie raw_;
  StringTrie normalized_;
};

}  // namespace comoe::tokenizer
