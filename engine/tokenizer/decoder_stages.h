// The stages of a decoder. The reference's decoders map a list of strings to a list of strings; here each is
// a stage that is fed as the tokens come and passes on what no later token can change any more. So decoding a
// stream and decoding a list are the same code, and a token costs its own length.
//
// Protocol: a string arrives as any number of Text() calls, each whole valid UTF-8, and one EndToken();
// Finish() ends the list. Stages are owned by one stream and are not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/pattern.h"

namespace comoe::tokenizer {

class DecodeSink {
 public:
  virtual ~DecodeSink() = default;
  virtual absl::Status Text(absl::string_view fragment) = 0;
  virtual absl::Status EndToken() = 0;
  virtual absl::Status Finish() = 0;
};

// By default passes everything on.
class DecodeStage : public DecodeSink {
 public:
  explicit DecodeStage(DecodeSink* next) : next_(next) {}  // `next` outlives this
  absl::Status Text(absl::string_view fragment) override { return next_->Text(fragment); }
  absl::Status EndToken() override { return next_->EndToken(); }
  absl::Status Finish() override { return next_->Finish(); }

 protected:
  DecodeSink& next() { return *next_; }
  absl::Status SendToken(absl::string_view token);

 private:
  DecodeSink* const next_;
};

// A stage that needs whole strings.
class WholeTokenStage : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  absl::Status Text(absl::string_view fragment) final;
  absl::Status EndToken() final;

 protected:
  virtual absl::Status Token(absl::string_view token) = 0;

 private:
  std::string token_;
};

// Bytes of the byte-level alphabet become one string; what is not UTF-8 becomes U+FFFD for each longest piece
// that begins a code point.
class ByteLevelStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  absl::Status Finish() override;

 private:
  absl::Status Token(absl::string_view token) override;
  absl::Status SendValid(bool is_end);

  std::string pending_;  // between tokens: the beginning of a code point, at most three bytes
};

// Neighbouring tokens <0xNN> are bytes of one string. It is only known to be UTF-8 when the group ends, and
// becomes one U+FFFD a byte otherwise, so a group is held back until then (or until it is known to be
// broken).
class ByteFallbackStage : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  absl::Status Text(absl::string_view fragment) override;
  absl::Status EndToken() override;
  absl::Status Finish() override;

 private:
  absl::Status AddByte(char byte);
  absl::Status EndGroup();
  absl::Status SendReplacements(std::size_t count);

  std::string held_;             // of a token that may yet be a byte
  bool passes_on_ = false;       // this token is none
  std::string group_;            // bytes that wait
  std::size_t group_valid_ = 0;  // of them, how many are whole code points
  bool group_is_broken_ = false;
};

// Everything becomes one string.
class FuseStage : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  absl::Status EndToken() override { return absl::OkStatus(); }
  absl::Status Finish() override;
};

// Takes up to `start` characters `content` from the beginning of each string and up to `stop` from its end.
class StripStage : public DecodeStage {
 public:
  StripStage(char32_t content, std::uint64_t start, std::uint64_t stop, DecodeSink* next);
  absl::Status Text(absl::string_view fragment) override;
  absl::Status EndToken() override;

 private:
  const char32_t content_;
  const std::string utf8_;
  const std::uint64_t start_;
  const std::uint64_t stop_;
  std::uint64_t stripped_ = 0;
  bool at_start_ = true;
  std::uint64_t held_ = 0;  // characters `content` that may be the string's end
};

// Replaces a literal in each string; holds back what may be its beginning (Knuth-Morris-Pratt).
class ReplaceLiteralStage : public DecodeStage {
 public:
  ReplaceLiteralStage(std::string literal, std::string content, DecodeSink* next);
  absl::Status Text(absl::string_view fragment) override;
  absl::Status EndToken() override;

 private:
  const std::string literal_;  // not empty
  const std::string content_;
  std::vector<std::size_t> fallback_;  // by matched bytes: the longest shorter prefix that still matches
  std::size_t matched_ = 0;
};

class ReplacePatternStage : public WholeTokenStage {
 public:
  ReplacePatternStage(std::shared_ptr<const Pattern> pattern, std::string content, DecodeSink* next);

 private:
  absl::Status Token(absl::string_view token) override;

  const std::shared_ptr<const Pattern> pattern_;
  Pattern::Finder finder_;
  const std::string content_;
};

// The replacement is a space again; in the first string it is nothing when a prefix was added.
class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(char32_t replacement, bool drops_first, DecodeSink* next)
      : DecodeStage(next), replacement_(replacement), drops_first_(drops_first) {}
  absl::Status Text(absl::string_view fragment) override;
  absl::Status EndToken() override;

 private:
  const char32_t replacement_;
  const bool drops_first_;
  bool is_first_ = true;
};

// A suffix ends a word: a space, or nothing in the last string.
class BpeSuffixStage : public WholeTokenStage {
 public:
  BpeSuffixStage(std::string suffix, DecodeSink* next) : WholeTokenStage(next), suffix_(std::move(suffix)) {}
  absl::Status Finish() override;

 private:
  absl::Status Token(absl::string_view token) override;

  const std::string suffix_;
  bool has_last_ = false;
  std::string last_;
};

class WordPieceStage : public WholeTokenStage {
 public:
  WordPieceStage(std::string prefix, bool cleans_up, DecodeSink* next)
      : WholeTokenStage(next), prefix_(std::move(prefix)), cleans_up_(cleans_up) {}

 private:
  absl::Status Token(absl::string_view token) override;

  const std::string prefix_;
  const bool cleans_up_;
  bool is_first_ = true;
};

// Without a decoder the strings are joined with spaces.
class JoinStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;

 private:
  absl::Status Token(absl::string_view token) override;
  bool is_first_ = true;
};

}  // namespace comoe::tokenizer
