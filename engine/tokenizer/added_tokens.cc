#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

// A token's content is a marker, not a document; a walk in the trie may take this many steps at every byte.
constexpr std::size_t kMaxContentBytes = 4096;

bool EndsInWord(absl::string_view text, std::size_t end) {
  std::size_t begin = 0;
  return end > 0 && IsWordCharacter(PreviousCodePoint(text, end, &begin));
}

bool BeginsWithWord(absl::string_view text, std::size_t begin) {
  return begin < text.size() && IsWordCharacter(NextCodePoint(text, &begin));
}

absl::StatusOr<AddedToken> ParseToken(const JsonField& field, const Normalizer* normalizer) {
  AddedToken token;
  COMOE_ASSIGN_OR_RETURN(const std::int64_t id, field.GetInt("id", 0, kMaxTokenId));
  token.id = static_cast<base::TokenId>(id);
  COMOE_ASSIGN_OR_RETURN(token.content, field.GetString("content"));
  COMOE_ASSIGN_OR_RETURN(token.single_word, field.GetBool("single_word"));
  COMOE_ASSIGN_OR_RETURN(token.strip_left, field.GetBool("lstrip"));
  COMOE_ASSIGN_OR_RETURN(token.strip_right, field.GetBool("rstrip"));
  COMOE_ASSIGN_OR_RETURN(token.normalized, field.GetBool("normalized"));
  COMOE_ASSIGN_OR_RETURN(token.special, field.GetBool("special"));
  if (token.content.empty() || token.content.size() > kMaxContentBytes) {
    return field.Error(absl::StrCat("content has ", token.content.size(), " bytes; 1 to ", kMaxContentBytes,
                                    " are supported"));
  }
  token.decoded = token.content;
  if (token.normalized && normalizer != nullptr) {
    AlignedText text = AlignedText::FromOriginal(token.content, 0, false);
    if (absl::Status status = normalizer->Normalize(&text); !status.ok()) {
      return base::Annotate(status, field.path());
    }
    token.decoded = std::string(text.view());
    if (token.decoded.empty()) {  // the reference would match it everywhere, for ever
      return field.Error("nothing is left of content when it is normalised");
    }
  }
  return token;
}

}  // namespace

bool StringTrie::Insert(absl::string_view text, std::uint32_t value) {
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    std::uint32_t& child = i == 0 ? root_[byte] : children_[std::uint64_t{node} << 8 | byte];
    if (child == 0) {
      child = static_cast<std::uint32_t>(values_.size());
      values_.push_back(kNoValue);
    }
    node = child;
  }
  if (values_[node] != kNoValue) {
    return false;
  }
  values_[node] = value;
  return true;
}

std::optional<StringTrie::Match> StringTrie::FindLongest(absl::string_view text, std::size_t begin) const {
  std::optional<Match> longest;
  std::uint32_t node = root_[static_cast<unsigned char>(text[begin])];
  for (std::size_t i = begin + 1; node != 0; ++i) {
    if (values_[node] != kNoValue) {
      longest = Match{i, values_[node]};
    }
    if (i == text.size()) {
      break;
    }
    const auto child = children_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    node = child == children_.end() ? 0 : child->second;
  }
  return longest;
}

absl::StatusOr<AddedTokens> AddedTokens::Parse(const JsonField& field, const BpeModel& model,
                                               const Normalizer* normalizer) {
  AddedTokens added;
  auto next_id = static_cast<base::TokenId>(model.num_tokens());
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> elements, field.AsArray());
  for (const JsonField& element : elements) {
    COMOE_ASSIGN_OR_RETURN(AddedToken token, ParseToken(element, normalizer));
    const auto index = static_cast<std::uint32_t>(added.tokens_.size());
    if (!added.by_content_.emplace(token.content, index).second) {
      return element.Error("content is also that of an earlier added token");
    }
    const std::optional<base::TokenId> known = model.TokenToId(token.content);
    const base::TokenId id = known.has_value() ? *known : next_id++;
    if (token.id != id) {
      return element.Error(absl::StrCat("id is ", token.id,
                                        known.has_value() ? ", but in model.vocab the token has "
                                                          : ", but the next id behind model.vocab is ",
                                        id));
    }
    if (id > kMaxTokenId || (!known.has_value() && model.IdToToken(id).has_value()) ||
        !added.by_id_.emplace(id, index).second) {
      return element.Error(absl::StrCat("the id ", id, " is out of range or taken by another token"));
    }
    if (!(token.normalized ? added.normalized_ : added.raw_).Insert(token.decoded, index)) {
      return element.Error("content is also that of an earlier added token once both are normalised");
    }
    added.tokens_.push_back(std::move(token));
  }
  return added;
}

void AddedTokens::Find(Set set, absl::string_view text, std::vector<Piece>* pieces) const {
  pieces->clear();
  const auto add = [pieces](std::size_t begin, std::size_t end, base::TokenId token) {
    pieces->push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), token});
  };
  const StringTrie& strings = trie(set);
  std::size_t done = 0;         // what is behind this is in no piece yet
  std::size_t space_begin = 0;  // the last white space that was walked over for strip_right
  std::size_t space_end = 0;
  for (std::size_t i = 0; i < text.size() && !strings.empty();) {
    const std::optional<StringTrie::Match> match = strings.FindLongest(text, i);
    if (!match.has_value()) {
      ++i;
      continue;
    }
    std::size_t begin = i;
    std::size_t end = match->end;
    i = end;  // also for a match that is discarded below
    const AddedToken& token = tokens_[match->value];
    if (token.single_word && (EndsInWord(text, begin) || BeginsWithWord(text, end))) {
      continue;
    }
    if (token.strip_left) {
      std::size_t previous = begin;
      while (begin > done && IsWhitespace(PreviousCodePoint(text, begin, &previous))) {
        begin = previous;
      }
      begin = std::max(begin, done);
    }
    if (token.strip_right) {
      if (end < space_begin || end > space_end) {
        space_begin = end;
        std::size_t next = end;
        while (end < text.size() && IsWhitespace(NextCodePoint(text, &next))) {
          end = next;
        }
        space_end = end;
      }
      end = space_end;
    }
    if (begin >= end) {
      continue;  // all of it is white space that the token before has taken
    }
    if (done < begin) {
      add(done, begin, kNoToken);
    }
    add(begin, end, token.id);
    done = end;
  }
  if (done < text.size()) {
    add(done, text.size(), kNoToken);
  }
}

const AddedToken* AddedTokens::FindId(base::TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::FindContent(absl::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

bool AddedTokens::IsSpecial(base::TokenId id) const {
  // The reference compares what it decodes with the special tokens' contents, so a special token that
  // normalisation changes is not skipped.
  const AddedToken* token = FindId(id);
  const AddedToken* same = token == nullptr ? nullptr : FindContent(token->decoded);
  return same != nullptr && same->special;
}

}  // namespace comoe::tokenizer
