#include "server/text_stream.h"

#include <algorithm>
#include <utility>

namespace comoe::server {

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, TextStreamOptions options)
    : options_(std::move(options)), decoder_(&tokenizer, options_.skip_special_tokens) {
  if (options_.stop != nullptr) {
    matcher_.emplace(options_.stop, options_.include_stop);
  }
}

void TextStream::PushPrompt(absl::Span<const base::TokenId> tokens, std::string* text) {
  for (const base::TokenId token : tokens) {
    if (const absl::StatusOr<std::string> piece = decoder_.Push(token); piece.ok()) {
      text->append(*piece);
    }
  }
}

bool TextStream::Push(base::TokenId token, std::string* text) {
  ++num_pushed_;
  const std::vector<base::TokenId>& hidden = options_.hidden_tokens;
  if (std::find(hidden.begin(), hidden.end(), token) != hidden.end()) {
    return false;
  }
  // An id that the tokenizer has no token for (models pad their vocabulary) has no text.
  const absl::StatusOr<std::string> piece = decoder_.Push(token);
  return piece.ok() && Emit(*piece, text);
}

bool TextStream::Flush(std::string* text) {
  if (const absl::StatusOr<std::string> rest = decoder_.Flush(); rest.ok() && Emit(*rest, text)) {
    return true;
  }
  if (matcher_.has_value()) {
    matcher_->Flush(text);
  }
  return false;
}

bool TextStream::Emit(const std::string& piece, std::string* text) {
  if (matcher_.has_value() && num_pushed_ > options_.min_tokens) {
    return matcher_->Push(piece, text);
  }
  text->append(piece);
  return false;
}

const std::string* TextStream::matched() const {
  return matcher_.has_value() && matcher_->matched() ? &matcher_->match() : nullptr;
}

}  // namespace comoe::server
