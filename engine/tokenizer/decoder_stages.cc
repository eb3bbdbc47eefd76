#include "engine/tokenizer/decoder_stages.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/decoder.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

// A replacement multiplies what it is given, and several in a row multiply each other.
absl::Status CheckReplaced(std::size_t bytes) {
  constexpr std::size_t kMaxReplacedBytes = std::size_t{16} << 20;
  return bytes <= kMaxReplacedBytes
             ? absl::OkStatus()
             : absl::ResourceExhaustedError(absl::StrCat("a decoder's Replace makes more than ",
                                                         kMaxReplacedBytes, " bytes of one token"));
}

}  // namespace

absl::Status DecodeStage::SendToken(absl::string_view token) {
  COMOE_RETURN_IF_ERROR(next_->Text(token));
  return next_->EndToken();
}

absl::Status WholeTokenStage::Text(absl::string_view fragment) {
  token_.append(fragment.data(), fragment.size());
  return absl::OkStatus();
}

absl::Status WholeTokenStage::EndToken() {
  const absl::Status status = Token(token_);
  token_.clear();
  return status;
}

absl::Status ByteLevelStage::Token(absl::string_view token) {
  if (const std::optional<std::string> bytes = ByteLevelBytes(token); bytes.has_value()) {
    pending_ += *bytes;
  } else {
    pending_.append(token.data(), token.size());
  }
  return SendValid(false);
}

absl::Status ByteLevelStage::SendValid(bool is_end) {
  std::string text;
  std::size_t done = 0;
  while (done < pending_.size()) {
    const absl::string_view rest = absl::string_view(pending_).substr(done);
    const Utf8Scan scan = ScanUtf8(rest);
    text.append(rest.data(), scan.valid_bytes);
    done += scan.valid_bytes;
    if (scan.bad_bytes > 0) {
      if (scan.incomplete && !is_end) {
        break;
      }
      text.append(kReplacementUtf8.data(), kReplacementUtf8.size());
      done += scan.bad_bytes;
    }
  }
  pending_.erase(0, done);
  return text.empty() ? absl::OkStatus() : next().Text(text);
}

absl::Status ByteLevelStage::Finish() {
  COMOE_RETURN_IF_ERROR(SendValid(true));
  COMOE_RETURN_IF_ERROR(next().EndToken());
  return next().Finish();
}

absl::Status ByteFallbackStage::Text(absl::string_view fragment) {
  if (passes_on_) {
    return next().Text(fragment);
  }
  held_.append(fragment.data(), fragment.size());
  if (held_.size() <= kByteTokenSize) {
    return absl::OkStatus();
  }
  passes_on_ = true;
  COMOE_RETURN_IF_ERROR(EndGroup());
  return next().Text(std::exchange(held_, {}));
}

absl::Status ByteFallbackStage::EndToken() {
  if (!passes_on_) {
    const std::string token = std::exchange(held_, {});
    if (const std::optional<char> byte = ByteOfToken(token); byte.has_value()) {
      return AddByte(*byte);
    }
    COMOE_RETURN_IF_ERROR(EndGroup());
    return SendToken(token);
  }
  passes_on_ = false;
  return next().EndToken();
}

absl::Status ByteFallbackStage::AddByte(char byte) {
  if (group_is_broken_) {
    return SendReplacements(1);
  }
  group_.push_back(byte);
  const Utf8Scan scan = ScanUtf8(absl::string_view(group_).substr(group_valid_));
  group_valid_ += scan.valid_bytes;
  if (scan.bad_bytes > 0 && !scan.incomplete) {
    group_is_broken_ = true;
    group_valid_ = 0;
    return SendReplacements(std::exchange(group_, {}).size());
  }
  return absl::OkStatus();
}

absl::Status ByteFallbackStage::EndGroup() {
  group_is_broken_ = false;
  const std::string group = std::exchange(group_, {});
  const bool is_valid = std::exchange(group_valid_, 0) == group.size();
  if (group.empty()) {
    return absl::OkStatus();
  }
  return is_valid ? SendToken(group) : SendReplacements(group.size());
}

absl::Status ByteFallbackStage::SendReplacements(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    COMOE_RETURN_IF_ERROR(SendToken(kReplacementUtf8));
  }
  return absl::OkStatus();
}

absl::Status ByteFallbackStage::Finish() {
  COMOE_RETURN_IF_ERROR(EndGroup());
  return next().Finish();
}

absl::Status FuseStage::Finish() {
  COMOE_RETURN_IF_ERROR(next().EndToken());
  return next().Finish();
}

StripStage::StripStage(char32_t content, std::uint64_t start, std::uint64_t stop, DecodeSink* next)
    : DecodeStage(next), content_(content), utf8_(ToUtf8(content)), start_(start), stop_(stop) {}

absl::Status StripStage::Text(absl::string_view fragment) {
  std::string text;
  for (std::size_t i = 0; i < fragment.size();) {
    const std::size_t begin = i;
    if (NextCodePoint(fragment, &i) != content_) {
      at_start_ = false;
      for (; held_ > 0; --held_) {
        text += utf8_;
      }
      text.append(fragment.data() + begin, i - begin);
    } else if (at_start_ && stripped_ < start_) {
      ++stripped_;
    } else if (held_ < stop_) {
      ++held_;
    } else {  // one that was held is not at the end
      text += utf8_;
    }
  }
  return text.empty() ? absl::OkStatus() : next().Text(text);
}

absl::Status StripStage::EndToken() {
  stripped_ = 0;
  at_start_ = true;
  held_ = 0;
  return next().EndToken();
}

ReplaceLiteralStage::ReplaceLiteralStage(std::string literal, std::string content, DecodeSink* next)
    : DecodeStage(next),
      literal_(std::move(literal)),
      content_(std::move(content)),
      fallback_(literal_.size(), 0) {
  for (std::size_t i = 1, length = 0; i < literal_.size(); ++i) {
    while (length > 0 && literal_[i] != literal_[length]) {
      length = fallback_[length - 1];
    }
    length += literal_[i] == literal_[length] ? 1 : 0;
    fallback_[i] = length;
  }
}

absl::Status ReplaceLiteralStage::Text(absl::string_view fragment) {
  std::string text;
  for (const char c : fragment) {
    while (matched_ > 0 && literal_[matched_] != c) {
      const std::size_t shorter = fallback_[matched_ - 1];
      text.append(literal_, 0, matched_ - shorter);
      matched_ = shorter;
    }
    if (literal_[matched_] != c) {
      text.push_back(c);
    } else if (++matched_ == literal_.size()) {
      text += content_;
      matched_ = 0;
      COMOE_RETURN_IF_ERROR(CheckReplaced(text.size()));
    }
  }
  return text.empty() ? absl::OkStatus() : next().Text(text);
}

absl::Status ReplaceLiteralStage::EndToken() {
  const std::size_t held = std::exchange(matched_, 0);
  if (held > 0) {
    COMOE_RETURN_IF_ERROR(next().Text(absl::string_view(literal_).substr(0, held)));
  }
  return next().EndToken();
}

ReplacePatternStage::ReplacePatternStage(std::shared_ptr<const Pattern> pattern, std::string content,
                                         DecodeSink* next)
    : WholeTokenStage(next), pattern_(std::move(pattern)), finder_(*pattern_), content_(std::move(content)) {}

absl::Status ReplacePatternStage::Token(absl::string_view token) {
  std::vector<RegexMatch> matches;
  COMOE_RETURN_IF_ERROR(finder_.FindAll(token, &matches));
  std::string text;
  std::size_t copied = 0;
  for (const RegexMatch& match : matches) {
    text.append(token.data() + copied, match.begin - copied);
    text += content_;
    copied = match.end;
    COMOE_RETURN_IF_ERROR(CheckReplaced(text.size()));
  }
  text.append(token.data() + copied, token.size() - copied);
  return SendToken(text);
}

absl::Status MetaspaceStage::Text(absl::string_view fragment) {
  std::string text;
  for (std::size_t i = 0; i < fragment.size();) {
    const std::size_t begin = i;
    if (NextCodePoint(fragment, &i) != replacement_) {
      text.append(fragment.data() + begin, i - begin);
    } else if (!is_first_ || !drops_first_) {
      text.push_back(' ');
    }
  }
  return text.empty() ? absl::OkStatus() : next().Text(text);
}

absl::Status MetaspaceStage::EndToken() {
  is_first_ = false;
  return next().EndToken();
}

absl::Status BpeSuffixStage::Token(absl::string_view token) {
  std::string previous = std::exchange(last_, std::string(token));
  if (!std::exchange(has_last_, true)) {
    return absl::OkStatus();
  }
  return SendToken(absl::StrReplaceAll(previous, {{suffix_, " "}}));
}

absl::Status BpeSuffixStage::Finish() {
  if (std::exchange(has_last_, false)) {
    COMOE_RETURN_IF_ERROR(SendToken(absl::StrReplaceAll(last_, {{suffix_, ""}})));
  }
  return next().Finish();
}

absl::Status WordPieceStage::Token(absl::string_view token) {
  std::string text(token);
  if (!std::exchange(is_first_, false)) {
    text = absl::StartsWith(token, prefix_) ? std::string(token.substr(prefix_.size()))
                                            : absl::StrCat(" ", token);
  }
  if (cleans_up_) {
    // One after the other, as each may make room for the next.
    constexpr std::pair<const char*, const char*> kCleanUps[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kCleanUps) {
      text = absl::StrReplaceAll(text, {{from, to}});
    }
  }
  return SendToken(text);
}

absl::Status JoinStage::Token(absl::string_view token) {
  if (!std::exchange(is_first_, false)) {
    COMOE_RETURN_IF_ERROR(next().Text(" "));
  }
  return SendToken(token);
}

}  // namespace comoe::tokenizer
