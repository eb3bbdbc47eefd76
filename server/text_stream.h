// Tokens to the text of a completion, piece by piece: every piece is valid UTF-8, and all of them joined are
// the text of all tokens, however they were split. gRPC's C++ client never gets over one invalid `string` in
// a stream.
#pragma once

#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"

namespace comoe::server {

struct TextStreamOptions {
  bool skip_special_tokens = true;
  // Tokens without text: those that end the completion.
  std::vector<base::TokenId> hidden_tokens;
};

// Thread-compatible. `tokenizer` outlives it.
class TextStream {
 public:
  TextStream(const tokenizer::Tokenizer& tokenizer, TextStreamOptions options);

  // Appends what is certain by now; a character that is not complete yet is held back.
  void Push(base::TokenId token, std::string* text);
  // Appends what was held back; an incomplete character shows as U+FFFD. Nothing comes after it.
  void Flush(std::string* text);

 private:
  const TextStreamOptions options_;
  tokenizer::StreamDecoder decoder_;
};

}  // namespace comoe::server
