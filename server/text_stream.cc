#include "server/text_stream.h"

#include <algorithm>
#include <utility>

namespace comoe::server {

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, TextStreamOptions options)
    : options_(std::move(options)), decoder_(tokenizer, options_.skip_special_tokens) {}

void TextStream::Push(base::TokenId token, std::string* text) {
  const std::vector<base::TokenId>& hidden = options_.hidden_tokens;
  if (std::find(hidden.begin(), hidden.end(), token) == hidden.end()) {
    text->append(decoder_.Push(token));
  }
}

void TextStream::Flush(std::string* text) { text->append(decoder_.Flush()); }

}  // namespace comoe::server
