#include "engine/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

constexpr base::TokenId kNoId = -1;
constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMaxPieceBytes = std::size_t{1} << 30;  // symbols are linked with 32-bit indices

std::uint64_t PairKey(base::TokenId left, base::TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

std::string Shown(absl::string_view token) {
  constexpr std::size_t kMaxShown = 60;
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(token.substr(0, kMaxShown)),
                      token.size() > kMaxShown ? "..." : "", "\"");
}

absl::StatusOr<std::optional<std::string>> OptionalString(const JsonField& object, absl::string_view name) {
  if (!object.Has(name)) {
    return std::optional<std::string>();
  }
  COMOE_ASSIGN_OR_RETURN(std::string text, object.GetString(name));
  return std::optional<std::string>(std::move(text));
}

// The large fields are read apart from the others, when they have the right type.
absl::Status CheckRead(const JsonField& model, absl::string_view name, absl::string_view type,
                       bool was_read) {
  if (was_read) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const JsonField field, model.Get(name));
  return field.Error(absl::StrCat(type, " is expected, found ", field.type_name()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Create(const JsonField& model,
                                                           const TokenizerFile& file) {
  if (model.Has("type")) {
    constexpr absl::string_view kSupported[] = {"BPE"};
    COMOE_RETURN_IF_ERROR(model.GetChoice("type", kSupported).status());
  } else if (!file.has_merges) {  // files from before the field name it by their content
    return model.Error("the field \"type\" is missing");
  }
  COMOE_RETURN_IF_ERROR(CheckRead(model, "vocab", "an object", file.has_vocab));
  COMOE_RETURN_IF_ERROR(CheckRead(model, "merges", "an array", file.has_merges));
  std::unique_ptr<BpeModel> bpe(new BpeModel());
  COMOE_RETURN_IF_ERROR(bpe->ReadOptions(model));
  COMOE_RETURN_IF_ERROR(bpe->ReadVocab(file));
  COMOE_RETURN_IF_ERROR(bpe->ReadMerges(file));
  bpe->FindCharacterIds();
  return bpe;
}

absl::Status BpeModel::ReadOptions(const JsonField& model) {
  if (model.Has("dropout")) {
    COMOE_ASSIGN_OR_RETURN(const JsonField dropout, model.Get("dropout"));
    if (!dropout.IsZero()) {
      return absl::UnimplementedError(
          absl::StrCat(dropout.path(), ": dropout makes encodings random; only null and 0 are supported"));
    }
  }
  COMOE_ASSIGN_OR_RETURN(unk_token_, OptionalString(model, "unk_token"));
  COMOE_ASSIGN_OR_RETURN(std::optional<std::string> prefix,
                         OptionalString(model, "continuing_subword_prefix"));
  COMOE_ASSIGN_OR_RETURN(std::optional<std::string> suffix, OptionalString(model, "end_of_word_suffix"));
  continuing_prefix_ = std::move(prefix).value_or("");
  end_suffix_ = std::move(suffix).value_or("");
  COMOE_ASSIGN_OR_RETURN(fuse_unk_, model.GetBoolOr("fuse_unk", false));
  COMOE_ASSIGN_OR_RETURN(byte_fallback_, model.GetBoolOr("byte_fallback", false));
  COMOE_ASSIGN_OR_RETURN(ignore_merges_, model.GetBoolOr("ignore_merges", false));
  return absl::OkStatus();
}

absl::Status BpeModel::ReadVocab(const TokenizerFile& file) {
  // The tokens alone, without the merges' copies of them.
  std::size_t bytes = 0;
  base::TokenId last = kNoId;
  for (const TokenizerFile::VocabEntry& entry : file.vocab) {
    bytes += entry.token.size;
    last = std::max(last, entry.id);
  }
  strings_.reserve(bytes);
  tokens_.resize(static_cast<std::size_t>(last) + 1);
  ids_.reserve(file.vocab.size());
  for (const TokenizerFile::VocabEntry& entry : file.vocab) {
    const absl::string_view text = file.Text(entry.token);
    const std::size_t begin = strings_.size();
    strings_.append(text.data(), text.size());  // within the reserved bytes: views into it stay valid
    const absl::string_view token(strings_.data() + begin, text.size());
    absl::string_view& place = tokens_[static_cast<std::size_t>(entry.id)];
    if (place.data() != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file.name, ": model.vocab[", Shown(text), "]: the id ",
                                                     entry.id, " is also that of ", Shown(place)));
    }
    place = token;
    if (!ids_.emplace(token, entry.id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.name, ": model.vocab[", Shown(text), "]: the token occurs twice"));
    }
  }
  if (unk_token_.has_value()) {
    unk_id_ = TokenToId(*unk_token_);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ReadMerges(const TokenizerFile& file) {
  pair_ranks_.reserve(file.merges.size());
  merged_ids_.reserve(file.merges.size());
  std::string joined;
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const absl::string_view left = file.Text(file.merges[rank].left);
    const absl::string_view right = file.Text(file.merges[rank].right);
    const auto unknown = [&](absl::string_view token) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.name, ": model.merges[", rank, "]: ", Shown(token), " is not in model.vocab"));
    };
    const std::optional<base::TokenId> left_id = TokenToId(left);
    const std::optional<base::TokenId> right_id = TokenToId(right);
    if (!left_id.has_value() || !right_id.has_value()) {
      return unknown(left_id.has_value() ? right : left);
    }
    if (right.size() < continuing_prefix_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(file.name, ": model.merges[", rank, "]: ", Shown(right),
                                                     " is shorter than model.continuing_subword_prefix"));
    }
    joined.assign(left.data(), left.size());
    const absl::string_view tail = right.substr(continuing_prefix_.size());
    joined.append(tail.data(), tail.size());
    const std::optional<base::TokenId> joined_id = TokenToId(joined);
    if (!joined_id.has_value()) {
      return unknown(joined);
    }
    pair_ranks_[PairKey(*left_id, *right_id)] =
        static_cast<std::uint32_t>(rank);  // the last of equal merges holds
    merged_ids_.push_back(*joined_id);
  }
  return absl::OkStatus();
}

void BpeModel::FindCharacterIds() {
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = TokenToId(absl::StrFormat("<0x%02X>", byte)).value_or(kNoId);
  }
  for (char32_t c = 0; c < character_ids_.size(); ++c) {
    character_ids_[c] = TokenToId(ToUtf8(c)).value_or(kNoId);
  }
}

std::optional<base::TokenId> BpeModel::TokenToId(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional<base::TokenId>(found->second);
}

std::optional<absl::string_view> BpeModel::IdToToken(base::TokenId id) const {
  if (id < 0 || id >= id_end() || tokens_[static_cast<std::size_t>(id)].data() == nullptr) {
    return std::nullopt;
  }
  return tokens_[static_cast<std::size_t>(id)];
}

absl::Status BpeModel::Encode(absl::string_view piece, Scratch* scratch,
                              std::vector<BpeToken>* tokens) const {
  if (piece.empty()) {
    return absl::OkStatus();
  }
  if (piece.size() > kMaxPieceBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a piece of ", piece.size(), " bytes; the limit is ", kMaxPieceBytes));
  }
  if (ignore_merges_) {
    if (const std::optional<base::TokenId> id = TokenToId(piece); id.has_value()) {
      tokens->push_back({*id, 0, static_cast<std::uint32_t>(piece.size())});
      return absl::OkStatus();
    }
  }
  scratch->symbols.clear();
  COMOE_RETURN_IF_ERROR(AddSymbols(piece, &scratch->symbols));
  Merge(scratch);
  std::uint32_t begin = 0;
  for (const Symbol& symbol : scratch->symbols) {
    if (!symbol.is_removed) {
      const std::uint32_t end = std::min(begin + symbol.size_bytes, static_cast<std::uint32_t>(piece.size()));
      tokens->push_back({symbol.id, begin, end});
      begin = end;
    }
  }
  return absl::OkStatus();
}

std::optional<base::TokenId> BpeModel::CharacterId(absl::string_view character, bool is_first,
                                                   bool is_last) const {
  const bool has_prefix = !is_first && !continuing_prefix_.empty();
  const bool has_suffix = is_last && !end_suffix_.empty();
  if (has_prefix || has_suffix) {
    return TokenToId(
        absl::StrCat(has_prefix ? continuing_prefix_ : "", character, has_suffix ? end_suffix_ : ""));
  }
  std::size_t pos = 0;
  const char32_t c = NextCodePoint(character, &pos);
  if (c < character_ids_.size()) {
    const base::TokenId id = character_ids_[c];
    return id == kNoId ? std::nullopt : std::optional<base::TokenId>(id);
  }
  return TokenToId(character);
}

bool BpeModel::AddByteSymbols(absl::string_view text, std::vector<Symbol>* symbols) const {
  const auto id_of = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c) != kNoId; })) {
    return false;
  }
  for (const char c : text) {
    Symbol& symbol = symbols->emplace_back();
    symbol.id = id_of(c);
    symbol.size_bytes = 1;
  }
  return true;
}

absl::Status BpeModel::AddSymbols(absl::string_view piece, std::vector<Symbol>* symbols) const {
  std::uint32_t unknown_bytes = 0;  // of the unknown token that is not written yet
  const auto write_unknown = [&] {
    if (unknown_bytes > 0) {
      Symbol& symbol = symbols->emplace_back();
      symbol.id = *unk_id_;
      symbol.size_bytes = unknown_bytes;
      unknown_bytes = 0;
    }
  };
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t size = Utf8Length(piece[begin]);
    const absl::string_view character = piece.substr(begin, size);
    const bool is_first = begin == 0;
    const bool is_last = begin + size == piece.size();
    begin += size;
    if (const std::optional<base::TokenId> id = CharacterId(character, is_first, is_last); id.has_value()) {
      write_unknown();
      Symbol& symbol = symbols->emplace_back();
      symbol.id = *id;
      symbol.size_bytes = static_cast<std::uint32_t>(size);
      continue;
    }
    if (byte_fallback_) {
      const bool is_plain = (is_first || continuing_prefix_.empty()) && (!is_last || end_suffix_.empty());
      const bool done = is_plain ? AddByteSymbols(character, symbols)
                                 : AddByteSymbols(absl::StrCat(is_first ? "" : continuing_prefix_, character,
                                                               is_last ? end_suffix_ : ""),
                                                  symbols);
      if (done) {
        continue;  // an unknown token that waits is written behind these bytes, as the reference does
      }
    }
    if (!unk_token_.has_value()) {
      continue;
    }
    if (!unk_id_.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat("the character ", Shown(character),
                                                        " needs the unknown token ", Shown(*unk_token_),
                                                        ", which model.vocab lacks"));
    }
    if (!fuse_unk_) {
      write_unknown();
    }
    unknown_bytes += static_cast<std::uint32_t>(size);
  }
  write_unknown();
  return absl::OkStatus();
}

// A heap entry is rank << 32 | position of the left symbol: the smallest is the best merge, leftmost first.
void BpeModel::PushPair(std::int32_t left, Scratch* scratch) const {
  Symbol& symbol = scratch->symbols[static_cast<std::size_t>(left)];
  symbol.rank = kNoRank;
  if (symbol.next < 0) {
    return;
  }
  const auto found =
      pair_ranks_.find(PairKey(symbol.id, scratch->symbols[static_cast<std::size_t>(symbol.next)].id));
  if (found != pair_ranks_.end()) {
    symbol.rank = found->second;
    scratch->heap.push_back(std::uint64_t{symbol.rank} << 32 | static_cast<std::uint32_t>(left));
  }
}

void BpeModel::Merge(Scratch* scratch) const {
  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<std::uint64_t>& heap = scratch->heap;
  const auto size = static_cast<std::int32_t>(symbols.size());
  heap.clear();
  for (std::int32_t i = 0; i < size; ++i) {
    symbols[static_cast<std::size_t>(i)].previous = i - 1;
    symbols[static_cast<std::size_t>(i)].next = i + 1 < size ? i + 1 : -1;
  }
  for (std::int32_t i = 0; i < size; ++i) {
    PushPair(i, scratch);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](std::int32_t left) {
    const std::size_t before = heap.size();
    PushPair(left, scratch);
    if (heap.size() != before) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  while (!heap.empty()) {
    const std::uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto left_index = static_cast<std::int32_t>(top & 0xFFFFFFFFu);
    Symbol& left = symbols[static_cast<std::size_t>(left_index)];
    const base::TokenId merged = merged_ids_[top >> 32];
    // Out of date when either side has changed since; the reference lets an entry stand that makes the same
    // token.
    if (left.is_removed || left.rank == kNoRank || merged_ids_[left.rank] != merged) {
      continue;
    }
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    left.id = merged;
    left.size_bytes += right.size_bytes;
    left.next = right.next;
    right.is_removed = true;
    if (left.next >= 0) {
      symbols[static_cast<std::size_t>(left.next)].previous = left_index;
    }
    if (left.previous >= 0) {
      push(left.previous);
    }
    push(left_index);
  }
}

}  // namespace comoe::tokenizer
