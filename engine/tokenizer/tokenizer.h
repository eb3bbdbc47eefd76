// Text to token ids and back, as tokenizer.json of a model says. Gives what the Hugging Face `tokenizers`
// library (0.23) gives for the components it supports, and refuses by name those that it does not.
//
// Supported: model BPE (byte level or with byte fallback); the normalizers, pre-tokenizers, post-processors
// and decoders that their headers list. `truncation` and `padding` must be null: how long a prompt may be is
// decided where requests are, and cutting or padding one silently would not be an answer to it.
//
//   COMOE_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load("model/tokenizer.json"));
//   COMOE_ASSIGN_OR_RETURN(std::vector<base::TokenId> ids, tokenizer->Encode("Hello",
//   /*add_special_tokens=*/true)); COMOE_ASSIGN_OR_RETURN(std::string text, tokenizer->Decode(ids,
//   /*skip_special_tokens=*/true));
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"

namespace comoe::tokenizer {

class DecodePipeline;

// A token and the bytes of the encoded text that it stands for. A token that is part of a character has all
// of it; one that was put in (a special token, a prefix) has an empty range or that of its neighbour.
struct TokenSpan {
  base::TokenId id = 0;
  std::size_t begin_bytes = 0;
  std::size_t end_bytes = 0;
};

// The longest text that Encode takes: some four million tokens, and under a gigabyte of working memory.
inline constexpr std::size_t kMaxEncodeBytes = std::size_t{16} << 20;

// Immutable after Load, so thread-safe: working memory belongs to the call.
class Tokenizer {
 public:
  // INVALID_ARGUMENT (malformed) and UNIMPLEMENTED (not supported) name the file and the field.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  // `name` is what errors call the text.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(absl::string_view json, absl::string_view name);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT for text that is not UTF-8 or longer than kMaxEncodeBytes; RESOURCE_EXHAUSTED when a
  // pattern of the file runs away on it. O(n log n) in the text. Special tokens that are written in the text
  // are recognised.
  absl::StatusOr<std::vector<base::TokenId>> Encode(absl::string_view text, bool add_special_tokens) const;
  // The same tokens with their places, for which it keeps eight more bytes a byte of the text.
  absl::StatusOr<std::vector<TokenSpan>> EncodeWithOffsets(absl::string_view text,
                                                           bool add_special_tokens) const;

  // Valid UTF-8. INVALID_ARGUMENT for an id that no token has.
  absl::StatusOr<std::string> Decode(absl::Span<const base::TokenId> ids, bool skip_special_tokens) const;

  // One more than the largest id. Some ids below it may have no token.
  int vocab_size() const;
  std::optional<base::TokenId> TokenToId(absl::string_view token) const;
  // The token as the file writes it ("Ġhello", "<0x0A>"). INVALID_ARGUMENT for an id that no token has.
  absl::StatusOr<std::string> IdToToken(base::TokenId id) const;
  // An added token that decoding can skip. False for ids that no token has.
  bool IsSpecial(base::TokenId id) const;
  // The raw bytes that the token stands for, which may be part of a character; empty for ids that no token
  // has.
  std::string TokenBytes(base::TokenId id) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<DecodePipeline> NewPipeline() const;
  // What decoders get for `id`.
  absl::StatusOr<absl::string_view> DecoderToken(base::TokenId id) const;

  const std::unique_ptr<const Impl> impl_;
};

}  // namespace comoe::tokenizer
