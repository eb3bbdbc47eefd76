#include "server/text_stream.h"

#include <algorithm>
#include <utility>

namespace comoe::server {

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, TextStreamOptions options)
    : options_(std::move(options)), decoder_(&tokenizer, options_.skip_special_tokens) {}

void TextStream::Push(base::TokenId token, std::string* text) {
  const std::vector<base::TokenId>& hidden = options_.hidden_tokens;
  if (std::find(hidden.begin(), hidden.end(), token) != hidden.end()) {
    return;
  }
  // An id that the tokenizer has no token for (models pad their vocabulary) has no text.
  if (const absl::StatusOr<std::string> piece = decoder_.Push(token); piece.ok()) {
    text->append(*piece);
  }
}

void TextStream::Flush(std::string* text) {
  if (const absl::StatusOr<std::string> rest = decoder_.Flush(); rest.ok()) {
    text->append(*rest);
  }
}

}  // namespace comoe::server
