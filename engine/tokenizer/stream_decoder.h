// Text of a stream of tokens as they are sampled.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/tokenizer/tokenizer.h"

namespace comoe::tokenizer {

// What Push and Flush have returned, one after the other, is what Tokenizer::Decode gives for all ids at
// once, however the ids arrive; each piece is whole, valid UTF-8. A Push costs the token's own length. Text
// is held back while later tokens can change it: the beginning of a character; a run of byte tokens (<0xNN>),
// which is one U+FFFD a byte if it is not UTF-8 in the end; with a decoder that replaces by regular
// expression behind Fuse or ByteLevel, all of it.
//
// Not thread-safe. The tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer* tokenizer, bool skip_special_tokens);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // The text that `id` completes, often empty. INVALID_ARGUMENT for an id that no token has: as if it had not
  // been pushed.
  absl::StatusOr<std::string> Push(base::TokenId id);
  // Ends the stream: the text that was held back. The next Push begins a new one.
  absl::StatusOr<std::string> Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodePipeline> pipeline_;
};

}  // namespace comoe::tokenizer
