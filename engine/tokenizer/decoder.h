// Decoders: how tokens become text again.
// Supported: ByteLevel ByteFallback Fuse Strip Replace Metaspace BPEDecoder WordPiece Sequence; null joins
// with spaces.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/decoder_stages.h"
#include "engine/tokenizer/json_fields.h"

namespace comoe::tokenizer {

// "<0x41>" -> 'A'.
inline constexpr std::size_t kByteTokenSize = 6;
std::optional<char> ByteOfToken(absl::string_view token);

// The stages of one stream of tokens, and the text that has come out of them. Not thread-safe.
class DecodePipeline {
 public:
  using StageFactory = std::function<std::unique_ptr<DecodeStage>(DecodeSink* next)>;
  explicit DecodePipeline(const std::vector<StageFactory>& factories);
  ~DecodePipeline();
  DecodePipeline(const DecodePipeline&) = delete;
  DecodePipeline& operator=(const DecodePipeline&) = delete;

  absl::Status Push(absl::string_view token);
  absl::Status Finish();   // no Push afterwards
  std::string TakeText();  // valid UTF-8: what has come out since the last call

 private:
  class Collector;
  std::unique_ptr<Collector> collector_;
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // last stage first
  DecodeSink* first_;
};

// Immutable and thread-safe.
class Decoder {
 public:
  // UNIMPLEMENTED names a decoder that is not supported.
  static absl::StatusOr<Decoder> Parse(const JsonField& field);

  // Does not refer to the decoder afterwards.
  std::unique_ptr<DecodePipeline> NewPipeline() const { return std::make_unique<DecodePipeline>(factories_); }
  // The bytes that one token stands for, without what depends on its neighbours (stripping, joining). They
  // may be part of a code point.
  std::string TokenBytes(absl::string_view token) const;

 private:
  absl::Status Add(const JsonField& field);
  absl::Status AddReplace(const JsonField& field);
  absl::Status AddMetaspace(const JsonField& field);

  std::vector<DecodePipeline::StageFactory> factories_;
  std::vector<std::function<std::string(std::string)>> token_maps_;
};

}  // namespace comoe::tokenizer
