#include "engine/tokenizer/pre_tokenizer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

constexpr absl::string_view kBehaviorNames[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                "Contiguous"};
constexpr SplitBehavior kBehaviors[] = {SplitBehavior::kRemoved, SplitBehavior::kIsolated,
                                        SplitBehavior::kMergedWithPrevious, SplitBehavior::kMergedWithNext,
                                        SplitBehavior::kContiguous};

// GPT-2's pattern, which ByteLevel applies on its own.
constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

absl::Status SplitByPattern(const Pattern& pattern, bool invert, SplitBehavior behavior, PreTokenized* text) {
  Pattern::Finder finder(pattern);
  std::vector<RegexMatch> matches;
  return text->Split(behavior, [&](absl::string_view piece, std::vector<Segment>* segments) -> absl::Status {
    COMOE_RETURN_IF_ERROR(finder.FindAll(piece, &matches));
    std::size_t end = 0;
    for (const RegexMatch& match : matches) {
      if (match.begin != end) {
        segments->push_back({end, match.begin, invert});
      }
      segments->push_back({match.begin, match.end, !invert});
      end = match.end;
    }
    if (end != piece.size()) {
      segments->push_back({end, piece.size(), invert});
    }
    return absl::OkStatus();
  });
}

// Every code point for which `is_match` is a match of its own.
template <typename IsMatch>
absl::Status SplitByCharacter(SplitBehavior behavior, IsMatch is_match, PreTokenized* text) {
  return text->Split(behavior, [&](absl::string_view piece, std::vector<Segment>* segments) -> absl::Status {
    std::size_t other = 0;
    for (std::size_t i = 0; i < piece.size();) {
      const std::size_t begin = i;
      if (is_match(NextCodePoint(piece, &i))) {
        if (other < begin) {
          segments->push_back({other, begin, false});
        }
        segments->push_back({begin, i, true});
        other = i;
      }
    }
    if (other < piece.size()) {
      segments->push_back({other, piece.size(), false});
    }
    return absl::OkStatus();
  });
}

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(std::unique_ptr<Pattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  absl::Status Apply(PreTokenized* text) const override {
    return SplitByPattern(*pattern_, invert_, behavior_, text);
  }

 private:
  const std::unique_ptr<Pattern> pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

class CharacterSplit : public PreTokenizer {
 public:
  using IsMatch = bool (*)(char32_t);
  CharacterSplit(IsMatch is_match, SplitBehavior behavior) : is_match_(is_match), behavior_(behavior) {}
  absl::Status Apply(PreTokenized* text) const override {
    return SplitByCharacter(behavior_, is_match_, text);
  }

 private:
  const IsMatch is_match_;
  const SplitBehavior behavior_;
};

class DelimiterSplit : public PreTokenizer {
 public:
  explicit DelimiterSplit(char32_t delimiter) : delimiter_(delimiter) {}
  absl::Status Apply(PreTokenized* text) const override {
    return SplitByCharacter(
        SplitBehavior::kRemoved, [this](char32_t c) { return c == delimiter_; }, text);
  }

 private:
  const char32_t delimiter_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<Pattern> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  absl::Status Apply(PreTokenized* text) const override {
    if (add_prefix_space_) {
      COMOE_RETURN_IF_ERROR(
          text->Rewrite([](const AlignedText& from, std::size_t begin, std::size_t end, AlignedText* out) {
            if (from.view()[begin] != ' ') {
              out->Append(" ", from.span(begin));
            }
            out->AppendRange(from, begin, end);
          }));
    }
    if (pattern_ != nullptr) {
      COMOE_RETURN_IF_ERROR(SplitByPattern(*pattern_, false, SplitBehavior::kIsolated, text));
    }
    return text->Rewrite([](const AlignedText& from, std::size_t begin, std::size_t end, AlignedText* out) {
      for (std::size_t i = begin; i < end; ++i) {
        out->Append(ByteLevelCharacter(static_cast<unsigned char>(from.view()[i])), from.span(i));
      }
    });
  }

 private:
  const bool add_prefix_space_;
  const std::unique_ptr<Pattern> pattern_;  // null: the text is not cut
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(char32_t replacement, Prepend prepend, bool split)
      : replacement_(replacement), utf8_(ToUtf8(replacement)), prepend_(prepend), split_(split) {}

  bool needs_spans() const override { return prepend_ == Prepend::kFirst; }
  absl::Status Apply(PreTokenized* text) const override {
    COMOE_RETURN_IF_ERROR(
        text->Rewrite([this](const AlignedText& from, std::size_t begin, std::size_t end, AlignedText* out) {
          const absl::string_view piece = from.view(begin, end);
          const bool has_prefix = piece[0] == ' ' || absl::StartsWith(piece, utf8_);
          if (!has_prefix && (prepend_ == Prepend::kAlways ||
                              (prepend_ == Prepend::kFirst && from.span(begin).begin == 0))) {
            out->Append(utf8_, from.span(begin));
          }
          std::size_t copied = begin;
          for (std::size_t i = begin; i < end; ++i) {
            if (from.view()[i] == ' ') {
              out->AppendRange(from, copied, i);
              out->Append(utf8_, from.span(i));
              copied = i + 1;
            }
          }
          out->AppendRange(from, copied, end);
        }));
    if (!split_) {
      return absl::OkStatus();
    }
    return SplitByCharacter(
        SplitBehavior::kMergedWithNext, [this](char32_t c) { return c == replacement_; }, text);
  }

 private:
  const char32_t replacement_;
  const std::string utf8_;
  const Prepend prepend_;
  const bool split_;
};

// Runs of word characters, and runs of what is neither that nor white space.
class Whitespace : public PreTokenizer {
 public:
  absl::Status Apply(PreTokenized* text) const override {
    enum class Kind { kSpace, kWord, kOther };
    return text->Split(SplitBehavior::kRemoved, [](absl::string_view piece, std::vector<Segment>* segments) {
      Kind run = Kind::kSpace;
      for (std::size_t i = 0; i < piece.size();) {
        const std::size_t begin = i;
        const char32_t c = NextCodePoint(piece, &i);
        const Kind kind = IsWordCharacter(c) ? Kind::kWord : IsWhitespace(c) ? Kind::kSpace : Kind::kOther;
        if (kind == run && !segments->empty()) {
          segments->back().end = i;
        } else {
          segments->push_back({begin, i, kind == Kind::kSpace});
          run = kind;
        }
      }
      return absl::OkStatus();
    });
  }
};

class Bert : public PreTokenizer {
 public:
  absl::Status Apply(PreTokenized* text) const override {
    COMOE_RETURN_IF_ERROR(SplitByCharacter(SplitBehavior::kRemoved, &IsWhitespace, text));
    return SplitByCharacter(SplitBehavior::kIsolated, &IsPunctuation, text);
  }
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(std::int64_t length) : length_(length) {}
  absl::Status Apply(PreTokenized* text) const override {
    return text->Split(SplitBehavior::kIsolated,
                       [this](absl::string_view piece, std::vector<Segment>* segments) {
                         for (std::size_t i = 0; i < piece.size();) {
                           const std::size_t begin = i;
                           for (std::int64_t n = 0; n < length_ && i < piece.size(); ++n) {
                             i += Utf8Length(piece[i]);
                           }
                           segments->push_back({begin, i, false});
                         }
                         return absl::OkStatus();
                       });
  }

 private:
  const std::int64_t length_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  bool needs_spans() const override {
    bool needed = false;
    for (const std::unique_ptr<PreTokenizer>& part : parts_) {
      needed = needed || part->needs_spans();
    }
    return needed;
  }
  absl::Status Apply(PreTokenized* text) const override {
    for (const std::unique_ptr<PreTokenizer>& part : parts_) {
      COMOE_RETURN_IF_ERROR(part->Apply(text));
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

using Parsed = absl::StatusOr<std::unique_ptr<PreTokenizer>>;

absl::StatusOr<SplitBehavior> ParseBehavior(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const std::size_t choice, field.GetChoice("behavior", kBehaviorNames));
  return kBehaviors[choice];
}

Parsed ParseSplit(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const JsonField pattern_field, field.Get("pattern"));
  COMOE_ASSIGN_OR_RETURN(std::unique_ptr<Pattern> pattern, Pattern::Parse(pattern_field));
  COMOE_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(field));
  COMOE_ASSIGN_OR_RETURN(const bool invert, field.GetBool("invert"));
  return std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior, invert);
}

Parsed ParseByteLevel(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const bool add_prefix_space, field.GetBool("add_prefix_space"));
  COMOE_ASSIGN_OR_RETURN(const bool use_regex, field.GetBoolOr("use_regex", true));
  std::unique_ptr<Pattern> pattern;
  if (use_regex) {
    COMOE_ASSIGN_OR_RETURN(pattern, Pattern::Expression(kGpt2Pattern));
  }
  return std::make_unique<ByteLevel>(add_prefix_space, std::move(pattern));
}

Parsed ParseMetaspace(const JsonField& field) {
  constexpr absl::string_view kSchemes[] = {"always", "first", "never"};
  constexpr Metaspace::Prepend kPrepends[] = {Metaspace::Prepend::kAlways, Metaspace::Prepend::kFirst,
                                              Metaspace::Prepend::kNever};
  COMOE_ASSIGN_OR_RETURN(const char32_t replacement, field.GetCharacter("replacement"));
  Metaspace::Prepend prepend = Metaspace::Prepend::kAlways;
  if (field.Has("prepend_scheme")) {
    COMOE_ASSIGN_OR_RETURN(const std::size_t choice, field.GetChoice("prepend_scheme", kSchemes));
    prepend = kPrepends[choice];
  }
  // The older name of "never"; true says nothing.
  COMOE_ASSIGN_OR_RETURN(const bool add_prefix_space, field.GetBoolOr("add_prefix_space", true));
  if (!add_prefix_space) {
    if (field.Has("prepend_scheme") && prepend != Metaspace::Prepend::kNever) {
      return field.Error("add_prefix_space is false, but prepend_scheme is not \"never\"");
    }
    prepend = Metaspace::Prepend::kNever;
  }
  COMOE_ASSIGN_OR_RETURN(const bool split, field.GetBoolOr("split", true));
  return std::make_unique<Metaspace>(replacement, prepend, split);
}

Parsed ParseSequence(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> elements, field.GetArray("pretokenizers"));
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const JsonField& element : elements) {
    COMOE_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> part, ParsePreTokenizer(element));
    if (part == nullptr) {
      return element.Error("null is no pre-tokenizer");
    }
    parts.push_back(std::move(part));
  }
  return std::make_unique<Sequence>(std::move(parts));
}

Parsed ParsePunctuation(const JsonField& field) {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (field.Has("behavior")) {
    COMOE_ASSIGN_OR_RETURN(behavior, ParseBehavior(field));
  }
  return std::make_unique<CharacterSplit>(&IsPunctuation, behavior);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const JsonField& field) {
  if (field.is_null()) {
    return nullptr;
  }
  constexpr absl::string_view kTypes[] = {
      "Split",       "ByteLevel",          "Metaspace",       "Digits",
      "Punctuation", "Whitespace",         "WhitespaceSplit", "BertPreTokenizer",
      "FixedLength", "CharDelimiterSplit", "Sequence"};
  COMOE_ASSIGN_OR_RETURN(const std::size_t choice, field.GetChoice("type", kTypes));
  const absl::string_view type = kTypes[choice];
  if (type == "Split") return ParseSplit(field);
  if (type == "ByteLevel") return ParseByteLevel(field);
  if (type == "Metaspace") return ParseMetaspace(field);
  if (type == "Punctuation") return ParsePunctuation(field);
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit")
    return std::make_unique<CharacterSplit>(&IsWhitespace, SplitBehavior::kRemoved);
  if (type == "BertPreTokenizer") return std::make_unique<Bert>();
  if (type == "Sequence") return ParseSequence(field);
  if (type == "Digits") {
    COMOE_ASSIGN_OR_RETURN(const bool individual, field.GetBool("individual_digits"));
    return std::make_unique<CharacterSplit>(
        &IsNumeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "CharDelimiterSplit") {
    COMOE_ASSIGN_OR_RETURN(const char32_t delimiter, field.GetCharacter("delimiter"));
    return std::make_unique<DelimiterSplit>(delimiter);
  }
  COMOE_ASSIGN_OR_RETURN(const std::int64_t length, field.Has("length") ? field.GetInt("length", 1, INT32_MAX)
                                                                        : absl::StatusOr<std::int64_t>(5));
  return std::make_unique<FixedLength>(length);
}

}  // namespace comoe::tokenizer
