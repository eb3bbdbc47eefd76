#include "engine/tokenizer/normalizer.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/unicode_normalize.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  absl::Status Normalize(AlignedText* text) const override {
    NormalizeUnicode(form_, text);
    return CheckWorkingTextSize(text->size());
  }

 private:
  const NormalForm form_;
};

// Code point by code point: appends what `c` becomes, which may be nothing.
class CharacterMap : public Normalizer {
 public:
  using Map = void (*)(char32_t c, std::string* out);
  explicit CharacterMap(Map map) : map_(map) {}

  absl::Status Normalize(AlignedText* text) const override {
    AlignedText out(text->tracked());
    out.reserve(text->size());
    std::string mapped;
    for (std::size_t i = 0; i < text->size();) {
      const ByteSpan span = text->span(i);
      mapped.clear();
      map_(NextCodePoint(text->view(), &i), &mapped);
      out.Append(mapped, span);
    }
    *text = std::move(out);
    return CheckWorkingTextSize(text->size());
  }

 private:
  const Map map_;
};

void DropMark(char32_t c, std::string* out) {
  if (!IsMark(c)) {
    AppendUtf8(c, out);
  }
}

void ToByteLevel(char32_t c, std::string* out) {
  for (const char byte : ToUtf8(c)) {
    const absl::string_view character = ByteLevelCharacter(static_cast<unsigned char>(byte));
    out->append(character.data(), character.size());
  }
}

// The clean-up of machine translation corpora: control characters go, odd white space becomes a space.
void CleanForNmt(char32_t c, std::string* out) {
  const bool is_dropped = (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
                          c == 0x8F || c == 0x9F;
  if (is_dropped) {
    return;
  }
  const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  AppendUtf8(is_space ? U' ' : c, out);
}

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Normalize(AlignedText* text) const override {
    const absl::string_view view = text->view();
    std::size_t begin = 0;
    std::size_t end = view.size();
    while (left_ && begin < end) {
      std::size_t next = begin;
      if (!IsWhitespace(NextCodePoint(view, &next))) break;
      begin = next;
    }
    while (right_ && begin < end) {
      std::size_t last = end;
      if (!IsWhitespace(PreviousCodePoint(view, end, &last))) break;
      end = last;
    }
    if (begin != 0 || end != view.size()) {
      AlignedText out(text->tracked());
      out.AppendRange(*text, begin, end);
      *text = std::move(out);
    }
    return absl::OkStatus();
  }

 private:
  const bool left_;
  const bool right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Normalize(AlignedText* text) const override {
    if (text->empty()) {
      return absl::OkStatus();
    }
    AlignedText out(text->tracked());
    out.reserve(prefix_.size() + text->size());
    out.Append(prefix_, text->span(0));
    out.AppendRange(*text, 0, text->size());
    *text = std::move(out);
    return CheckWorkingTextSize(text->size());
  }

 private:
  const std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Normalize(AlignedText* text) const override {
    std::vector<RegexMatch> matches;
    COMOE_RETURN_IF_ERROR(Pattern::Finder(*pattern_).FindAll(text->view(), &matches));
    if (matches.empty()) {
      return absl::OkStatus();
    }
    COMOE_RETURN_IF_ERROR(
        CheckWorkingTextSize(matches.size() * content_.size()));  // before any of it is made
    AlignedText out(text->tracked());
    out.reserve(text->size());
    std::size_t copied = 0;
    for (const RegexMatch& match : matches) {
      out.AppendRange(*text, copied, match.begin);
      // Stands for the last character that it replaces, or that it follows.
      out.Append(content_, match.end == 0 ? ByteSpan{} : text->span(match.end - 1));
      copied = match.end;
    }
    out.AppendRange(*text, copied, text->size());
    *text = std::move(out);
    return CheckWorkingTextSize(text->size());
  }

 private:
  const std::unique_ptr<Pattern> pattern_;
  const std::string content_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  absl::Status Normalize(AlignedText* text) const override {
    for (const std::unique_ptr<Normalizer>& part : parts_) {
      COMOE_RETURN_IF_ERROR(part->Normalize(text));
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> parts_;
};

using Parsed = absl::StatusOr<std::unique_ptr<Normalizer>>;

Parsed ParseSequence(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> elements, field.GetArray("normalizers"));
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const JsonField& element : elements) {
    COMOE_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> part, ParseNormalizer(element));
    if (part == nullptr) {
      return element.Error("null is no normalizer");
    }
    parts.push_back(std::move(part));
  }
  return std::make_unique<Sequence>(std::move(parts));
}

Parsed ParseReplace(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const JsonField pattern_field, field.Get("pattern"));
  COMOE_ASSIGN_OR_RETURN(std::unique_ptr<Pattern> pattern, Pattern::Parse(pattern_field));
  COMOE_ASSIGN_OR_RETURN(std::string content, field.GetString("content"));
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}

Parsed ParseStrip(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const bool left, field.GetBool("strip_left"));
  COMOE_ASSIGN_OR_RETURN(const bool right, field.GetBool("strip_right"));
  return std::make_unique<Strip>(left, right);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const JsonField& field) {
  if (field.is_null()) {
    return nullptr;
  }
  constexpr absl::string_view kTypes[] = {"NFC", "NFD",   "NFKC",    "NFKD",    "StripAccents", "Lowercase",
                                          "Nmt", "Strip", "Prepend", "Replace", "ByteLevel",    "Sequence"};
  COMOE_ASSIGN_OR_RETURN(const std::size_t choice, field.GetChoice("type", kTypes));
  const absl::string_view type = kTypes[choice];
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "StripAccents") return std::make_unique<CharacterMap>(&DropMark);
  if (type == "Lowercase") return std::make_unique<CharacterMap>(&AppendLowercase);
  if (type == "Nmt") return std::make_unique<CharacterMap>(&CleanForNmt);
  if (type == "ByteLevel") return std::make_unique<CharacterMap>(&ToByteLevel);
  if (type == "Strip") return ParseStrip(field);
  if (type == "Replace") return ParseReplace(field);
  if (type == "Sequence") return ParseSequence(field);
  COMOE_ASSIGN_OR_RETURN(std::string prefix, field.GetString("prepend"));
  if (prefix.empty()) {  // the reference doubles the first character then
    return field.Error("prepend is empty");
  }
  return std::make_unique<Prepend>(std::move(prefix));
}

}  // namespace comoe::tokenizer
