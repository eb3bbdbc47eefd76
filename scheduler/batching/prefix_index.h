// Which blocks hold the state of which beginnings of token sequences, so that a request that begins like an
// earlier one need not compute that part again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"

namespace comoe::batching {

// A prefix of whole blocks of tokens. Found by its last block's tokens and the number of the prefix before
// it, compared in full: two prefixes are never taken for one, as can happen where only hashes are compared.
// The salt is part of the first block, so prefixes of different salts share nothing.
struct Prefix {
  std::uint64_t number = 0;  // never used again; 0 would be the empty prefix
  std::uint64_t parent = 0;
  std::string salt;                   // "" unless parent is 0
  std::vector<base::TokenId> tokens;  // of its last block
  std::vector<base::BlockId> blocks;  // its last block in each cache group, kNoBlock where that is gone
};

// Thread-compatible. Pointers to prefixes live until Erase.
class PrefixIndex {
 public:
  explicit PrefixIndex(std::size_t num_groups) : num_groups_(num_groups) {}

  // The prefix that continues `parent` with these tokens; nullptr if it is not known. `salt` counts only
  // where parent is 0.
  Prefix* Find(std::uint64_t parent, absl::string_view salt, absl::Span<const base::TokenId> tokens) const;
  // The same, made if it is not known: without blocks.
  Prefix* FindOrAdd(std::uint64_t parent, absl::string_view salt, absl::Span<const base::TokenId> tokens);
  // Forgets a prefix; those that continue it are not found any more.
  void Erase(const Prefix* prefix);

  std::size_t size() const { return prefixes_.size(); }

 private:
  struct Key {
    std::uint64_t parent;
    absl::string_view salt;
    absl::Span<const base::TokenId> tokens;
  };
  static Key KeyOf(const Key& key) { return key; }
  static Key KeyOf(const std::unique_ptr<Prefix>& prefix) {
    return {prefix->parent, prefix->salt, prefix->tokens};
  }
  struct Hash {
    using is_transparent = void;
    template <typename Value>
    std::size_t operator()(const Value& value) const {
      const Key key = KeyOf(value);
      return absl::HashOf(key.parent, key.salt, key.tokens);
    }
  };
  struct Equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& left, const B& right) const {
      const Key a = KeyOf(left);
      const Key b = KeyOf(right);
      return a.parent == b.parent && a.salt == b.salt && a.tokens == b.tokens;
    }
  };

  const std::size_t num_groups_;
  std::uint64_t next_number_ = 1;
  absl::flat_hash_set<std::unique_ptr<Prefix>, Hash, Equal> prefixes_;
};

}  // namespace comoe::batching
