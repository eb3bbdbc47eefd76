// Tokens to the text of a completion, piece by piece: every piece is valid UTF-8, and all of them joined are
// the text of all tokens, however they were split, up to the first stop string. gRPC's C++ client never gets
// over one invalid `string` in a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/stop_matcher.h"

namespace comoe::server {

struct TextStreamOptions {
  bool skip_special_tokens = true;
  // Tokens without text: those that end the completion.
  std::vector<base::TokenId> hidden_tokens;
  std::shared_ptr<const StopStrings> stop;  // null: none
  bool include_stop = false;                // a stop string that was found stays in the text
  // Stop strings are looked for only in text that becomes certain with later tokens than that many.
  std::int64_t min_tokens = 0;
};

// Thread-compatible. `tokenizer` outlives it.
class TextStream {
 public:
  TextStream(const tokenizer::Tokenizer& tokenizer, TextStreamOptions options);

  // Appends the prompt's text: it is decoded together with the completion's. Before any Push; hides no token
  // and is not searched for stop strings, but where its last character is completed by the completion.
  void PushPrompt(absl::Span<const base::TokenId> tokens, std::string* text);
  // Appends what is certain by now; a character that is not complete yet, and what may be the beginning of a
  // stop string, is held back. True: the token has completed a stop string; nothing comes after it.
  bool Push(base::TokenId token, std::string* text);
  // Appends what was held back; an incomplete character shows as U+FFFD. Nothing comes after it. True: that
  // has completed a stop string.
  bool Flush(std::string* text);

  // Null while no stop string has been found.
  const std::string* matched() const;

 private:
  bool Emit(const std::string& piece, std::string* text);

  const TextStreamOptions options_;
  tokenizer::StreamDecoder decoder_;
  std::optional<StopMatcher> matcher_;
  std::int64_t num_pushed_ = 0;
};

}  // namespace comoe::server
