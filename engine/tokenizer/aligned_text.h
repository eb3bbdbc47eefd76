// A text that has been changed on its way from the original, with the place in the original of every byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace comoe::tokenizer {

// Half-open byte range in the original text.
struct ByteSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  friend bool operator==(const ByteSpan&, const ByteSpan&) = default;
};

// What a text may grow to while it is normalised and pre-tokenised: replacements come from a file and could
// multiply a request's text without end. (The byte-level alphabet makes at most twice kMaxEncodeBytes of it.)
inline constexpr std::size_t kMaxWorkingTextBytes = std::size_t{64} << 20;
absl::Status CheckWorkingTextSize(std::size_t bytes);

// Always valid UTF-8. Spans are kept only when asked for (they cost eight bytes a byte), all bytes of a code
// point have the same one, and an untracked text answers {0, 0}. Not thread-safe.
class AlignedText {
 public:
  explicit AlignedText(bool tracked) : tracked_(tracked) {}
  // The original itself: `text` begins at byte `offset` of it.
  static AlignedText FromOriginal(absl::string_view text, std::size_t offset, bool tracked);

  absl::string_view view() const { return text_; }
  absl::string_view view(std::size_t begin, std::size_t end) const {
    return absl::string_view(text_).substr(begin, end - begin);
  }
  std::size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  bool tracked() const { return tracked_; }
  ByteSpan span(std::size_t byte) const { return tracked_ ? spans_[byte] : ByteSpan{}; }

  void reserve(std::size_t bytes);
  // Every byte of `text` stands for `from`.
  void Append(absl::string_view text, ByteSpan from);
  void AppendRange(const AlignedText& other, std::size_t begin, std::size_t end);

 private:
  bool tracked_;
  std::string text_;
  std::vector<ByteSpan> spans_;  // one a byte of text_, or none
};

}  // namespace comoe::tokenizer
