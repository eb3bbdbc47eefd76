// Byte pair encoding: the vocabulary, the merges, and how a piece of text becomes tokens.
//
// A piece starts as one symbol a code point. Of all neighbouring pairs that have a merge, the best-ranked one
// (the leftmost among equals) is joined, until none is left. The symbols are a linked list and the candidates
// a heap, so a piece of n code points costs O(n log n) however long it is: there are texts without a single
// space.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"
#include "engine/tokenizer/json_fields.h"
#include "engine/tokenizer/tokenizer_file.h"

namespace comoe::tokenizer {

// A token and the bytes of the piece that it covers.
struct BpeToken {
  base::TokenId id = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

// Immutable and thread-safe.
class BpeModel {
 public:
  // From the vocabulary and merges of `file`; `model` is its "model" object, for the options. UNIMPLEMENTED
  // for other model types and for dropout; INVALID_ARGUMENT for repeated tokens or ids, and merges of unknown
  // tokens.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Create(const JsonField& model, const TokenizerFile& file);
  BpeModel(const BpeModel&) = delete;
  BpeModel& operator=(const BpeModel&) = delete;

  // Working memory of one thread.
  struct Scratch {
    struct Symbol {
      base::TokenId id = 0;
      std::uint32_t size_bytes = 0;
      std::int32_t previous = -1;
      std::int32_t next = -1;
      std::uint32_t rank = 0;  // of the merge with the next symbol
      bool is_removed = false;
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> heap;
  };

  // Appends the tokens of `piece` (valid UTF-8, at most 2^30 bytes). FAILED_PRECONDITION when a character
  // needs the unknown token and the vocabulary lacks it. A character that is unknown, with no unknown token
  // set, is left out.
  absl::Status Encode(absl::string_view piece, Scratch* scratch, std::vector<BpeToken>* tokens) const;

  // Distinct tokens, and one more than the largest id.
  std::size_t num_tokens() const { return ids_.size(); }
  base::TokenId id_end() const { return static_cast<base::TokenId>(tokens_.size()); }
  std::optional<base::TokenId> TokenToId(absl::string_view token) const;
  // Nothing for an id that no token has.
  std::optional<absl::string_view> IdToToken(base::TokenId id) const;

 private:
  using Symbol = Scratch::Symbol;

  BpeModel() = default;
  absl::Status ReadOptions(const JsonField& model);
  absl::Status ReadVocab(const TokenizerFile& file);
  absl::Status ReadMerges(const TokenizerFile& file);
  void FindCharacterIds();

  absl::Status AddSymbols(absl::string_view piece, std::vector<Symbol>* symbols) const;
  bool AddByteSymbols(absl::string_view text, std::vector<Symbol>* symbols) const;
  std::optional<base::TokenId> CharacterId(absl::string_view character, bool is_first, bool is_last) const;
  void Merge(Scratch* scratch) const;
  void PushPair(std::int32_t left, Scratch* scratch) const;

  std::string strings_;                                           // every token's text
  std::vector<absl::string_view> tokens_;                         // by id; data() is null where there is none
  absl::flat_hash_map<absl::string_view, base::TokenId> ids_;     // into strings_
  absl::flat_hash_map<std::uint64_t, std::uint32_t> pair_ranks_;  // (left id, right id) -> rank
  std::vector<base::TokenId> merged_ids_;                         // by rank
  std::array<base::TokenId, 256> byte_ids_{};                     // <0xNN>, or -1
  std::array<base::TokenId, 0x400> character_ids_{};              // of the first code points, or -1
  std::optional<std::string> unk_token_;
  std::optional<base::TokenId> unk_id_;
  std::string continuing_prefix_;
  std::string end_suffix_;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
};

}  // namespace comoe::tokenizer
