#include "engine/tokenizer/stream_decoder.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/tokenizer/decoder.h"

namespace comoe::tokenizer {

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens), pipeline_(tokenizer->NewPipeline()) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

absl::StatusOr<std::string> StreamDecoder::Push(base::TokenId id) {
  COMOE_ASSIGN_OR_RETURN(const absl::string_view token, tokenizer_->DecoderToken(id));
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) {
    return std::string();
  }
  COMOE_RETURN_IF_ERROR(pipeline_->Push(token));
  return pipeline_->TakeText();
}

absl::StatusOr<std::string> StreamDecoder::Flush() {
  const std::unique_ptr<DecodePipeline> ended = std::exchange(pipeline_, tokenizer_->NewPipeline());
  COMOE_RETURN_IF_ERROR(ended->Finish());
  return ended->TakeText();
}

}  // namespace comoe::tokenizer
