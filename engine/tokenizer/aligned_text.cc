#include "engine/tokenizer/aligned_text.h"

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {

absl::Status CheckWorkingTextSize(std::size_t bytes) {
  if (bytes > kMaxWorkingTextBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the text grows to ", bytes, " bytes while it is normalised; the limit is ", kMaxWorkingTextBytes));
  }
  return absl::OkStatus();
}

AlignedText AlignedText::FromOriginal(absl::string_view text, std::size_t offset, bool tracked) {
  AlignedText out(tracked);
  out.text_.assign(text.data(), text.size());
  if (tracked) {
    out.spans_.reserve(text.size());
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = Utf8Length(text[i]);
      const ByteSpan span{static_cast<std::uint32_t>(offset + i),
                          static_cast<std::uint32_t>(offset + i + length)};
      out.spans_.insert(out.spans_.end(), length, span);
      i += length;
    }
  }
  return out;
}

void AlignedText::reserve(std::size_t bytes) {
  text_.reserve(bytes);
  if (tracked_) {
    spans_.reserve(bytes);
  }
}

void AlignedText::Append(absl::string_view text, ByteSpan from) {
  text_.append(text.data(), text.size());
  if (tracked_) {
    spans_.insert(spans_.end(), text.size(), from);
  }
}

void AlignedText::AppendRange(const AlignedText& other, std::size_t begin, std::size_t end) {
  text_.append(other.text_, begin, end - begin);
  if (tracked_ && other.tracked_) {
    spans_.insert(spans_.end(), other.spans_.begin() + static_cast<std::ptrdiff_t>(begin),
                  other.spans_.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

}  // namespace comoe::tokenizer
