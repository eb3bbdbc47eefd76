#include "engine/tokenizer/regex_syntax.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

constexpr int kMaxGroupDepth = 200;          // PCRE2's own default is 250
constexpr std::uint32_t kMaxRepeat = 65535;  // PCRE2's limit

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : pattern_(pattern) { groups_.push_back({0, 0}); }

  absl::StatusOr<std::string> Run() {
    while (pos_ < pattern_.size()) {
      COMOE_RETURN_IF_ERROR(Next());
    }
    if (groups_.size() != 1) {
      return Malformed("a '(' has no ')'");
    }
    out_.append(groups_[0].open_options, ')');
    return std::move(out_);
  }

 private:
  struct Group {
    std::size_t out_begin;     // where the group begins in out_
    std::size_t open_options;  // "(?i:" that were opened for an option in mid-group and end with it
  };

  absl::Status Malformed(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("regular expression, byte ", pos_, ": ", what));
  }
  absl::Status Unsupported(absl::string_view what) const {
    return absl::UnimplementedError(
        absl::StrCat("regular expression, byte ", pos_, ": ", what, " is not supported"));
  }
  bool LooksAt(absl::string_view text) const { return pattern_.substr(pos_, text.size()) == text; }

  void BeginAtom() {
    atom_begin_ = out_.size();
    has_atom_ = true;
    is_quantified_ = false;
  }
  void Wrap() {  // the atom, with its quantifier, becomes one that another quantifier may follow
    out_.insert(atom_begin_, "(?:");
    out_.push_back(')');
  }

  absl::Status Next() {
    switch (pattern_[pos_]) {
      case '\\':
        return Escape();
      case '[': {
        BeginAtom();
        COMOE_ASSIGN_OR_RETURN(const std::string set, TranslateClass(pattern_, &pos_));
        out_ += set;
        return absl::OkStatus();
      }
      case '(':
        return Open();
      case ')':
        return Close();
      case '|':
        out_.push_back('|');
        has_atom_ = false;
        ++pos_;
        return absl::OkStatus();
      case '^':
      case '$':
      case '.':
        BeginAtom();
        out_.push_back(pattern_[pos_++]);
        return absl::OkStatus();
      case '*':
      case '+':
      case '?':
        return Quantifier();
      case '{':
        return Interval();
      default:
        BeginAtom();
        out_ += QuoteForRegex(NextCodePoint(pattern_, &pos_));
        return absl::OkStatus();
    }
  }

  absl::Status Escape() {
    const char letter = pos_ + 1 < pattern_.size() ? pattern_[pos_ + 1] : '\0';
    BeginAtom();
    const auto emit = [this](absl::string_view text) {
      out_.append(text.data(), text.size());
      pos_ += 2;
      return absl::OkStatus();
    };
    switch (letter) {
      case 's':
      case 'S':
      case 'd':
      case 'D':
      case 'h':
      case 'H':
      case 'p':
      case 'P':
        return SetEscape(letter);
      case 'w':
        return emit(absl::StrCat("[", kWordItems, "]"));
      case 'W':
        return emit(absl::StrCat("[^", kWordItems, "]"));
      case 'b':
        return emit(absl::StrCat("(?:(?<=[", kWordItems, "])(?![", kWordItems, "])|(?<![", kWordItems,
                                 "])(?=[", kWordItems, "]))"));
      case 'B':
        return emit(absl::StrCat("(?:(?<=[", kWordItems, "])(?=[", kWordItems, "])|(?<![", kWordItems,
                                 "])(?![", kWordItems, "]))"));
      case 'A':
      case 'z':
      case 'Z':
      case 'R':
      case 'X':
      case 'N':
        return emit(pattern_.substr(pos_, 2));
      case 'O':
        return emit("(?s:.)");
      case 'k':
        return NamedReference();
      default:
        break;
    }
    if (letter >= '1' && letter <= '9') {
      std::size_t end = pos_ + 1;
      while (end < pattern_.size() && absl::ascii_isdigit(static_cast<unsigned char>(pattern_[end]))) {
        ++end;
      }
      absl::StrAppend(&out_, "\\g{", pattern_.substr(pos_ + 1, end - pos_ - 1), "}");
      pos_ = end;
      return absl::OkStatus();
    }
    std::size_t behind = pos_ + 1;
    absl::StatusOr<char32_t> c = ParseCharacterEscape(pattern_, &behind);
    if (absl::IsNotFound(c.status())) {
      return Unsupported(absl::StrCat("the escape \\", pattern_.substr(pos_ + 1, 1)));
    }
    COMOE_RETURN_IF_ERROR(c.status());
    pos_ = behind;
    out_ += QuoteForRegex(*c);
    return absl::OkStatus();
  }

  // The same sets as in a class: one class around the escape.
  absl::Status SetEscape(char letter) {
    std::size_t end = pos_ + 2;
    if (letter == 'p' || letter == 'P') {
      end = pattern_.find('}', pos_);
      if (pattern_.substr(pos_ + 2, 1) != "{" || end == absl::string_view::npos) {
        return Unsupported("\\p without {name}");
      }
      ++end;
    }
    const std::string in_class = absl::StrCat("[", pattern_.substr(pos_, end - pos_), "]");
    std::size_t class_pos = 0;
    COMOE_ASSIGN_OR_RETURN(const std::string set, TranslateClass(in_class, &class_pos));
    out_ += set;
    pos_ = end;
    return absl::OkStatus();
  }

  absl::Status NamedReference() {
    const std::size_t end = pattern_.find('>', pos_);
    if (pattern_.substr(pos_ + 2, 1) != "<" || end == absl::string_view::npos) {
      return Unsupported("this form of \\k");
    }
    for (const char c : pattern_.substr(pos_ + 3, end - pos_ - 3)) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') {
        return Unsupported("this form of \\k");
      }
    }
    absl::StrAppend(&out_, pattern_.substr(pos_, end + 1 - pos_));
    pos_ = end + 1;
    return absl::OkStatus();
  }

  absl::Status Push(absl::string_view opener, std::size_t consumed) {
    if (groups_.size() > kMaxGroupDepth) {
      return Malformed(absl::StrCat("groups nested deeper than ", kMaxGroupDepth));
    }
    groups_.push_back({out_.size(), 0});
    out_.append(opener.data(), opener.size());
    pos_ += consumed;
    has_atom_ = false;
    return absl::OkStatus();
  }

  absl::Status Open() {
    if (LooksAt("(?#")) {
      const std::size_t end = pattern_.find(')', pos_);
      if (end == absl::string_view::npos) {
        return Malformed("the comment has no ')'");
      }
      pos_ = end + 1;
      return absl::OkStatus();
    }
    for (const absl::string_view opener : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (LooksAt(opener)) {
        return Push(opener, opener.size());
      }
    }
    if (LooksAt("(?<")) {
      const std::size_t end = pattern_.find('>', pos_);
      if (end == absl::string_view::npos || end == pos_ + 3) {
        return Malformed("the group's name has no '>'");
      }
      return Push(pattern_.substr(pos_, end + 1 - pos_), end + 1 - pos_);
    }
    if (LooksAt("(?")) {
      return OpenOptions();
    }
    if (LooksAt("(*")) {  // verbs and limits of PCRE2
      return Malformed("target of the repeat '*' is missing");
    }
    return Push("(", 1);
  }

  // (?i) (?m) (?-i) (?i:...). An option without ':' holds to the end of its group, alternatives included.
  absl::Status OpenOptions() {
    std::string flags;
    std::size_t i = pos_ + 2;
    for (; i < pattern_.size() && pattern_[i] != ')' && pattern_[i] != ':'; ++i) {
      switch (pattern_[i]) {
        case 'i':
        case '-':
          flags.push_back(pattern_[i]);
          break;
        case 'm':  // Ruby's name for it
          flags.push_back('s');
          break;
        default:
          return Unsupported(absl::StrCat("the group option (?", pattern_.substr(i, 1)));
      }
    }
    if (i == pattern_.size()) {
      return Malformed("a '(' has no ')'");
    }
    const std::string opener = absl::StrCat("(?", flags, ":");
    if (pattern_[i] == ':') {
      return Push(opener, i + 1 - pos_);
    }
    out_ += opener;
    if (++groups_.back().open_options > kMaxGroupDepth) {
      return Malformed("too many group options");
    }
    pos_ = i + 1;
    has_atom_ = false;
    return absl::OkStatus();
  }

  absl::Status Close() {
    if (groups_.size() == 1) {
      return Malformed("a ')' has no '('");
    }
    const Group group = groups_.back();
    groups_.pop_back();
    out_.append(group.open_options + 1, ')');
    ++pos_;
    atom_begin_ = group.out_begin;
    has_atom_ = true;
    is_quantified_ = false;
    return absl::OkStatus();
  }

  // Before a quantifier is written: it needs something to repeat, and PCRE2 takes one quantifier an atom.
  absl::Status PrepareAtom() {
    if (!has_atom_) {
      return Malformed("target of the repeat is missing");
    }
    if (is_quantified_) {
      Wrap();
    }
    is_quantified_ = true;
    return absl::OkStatus();
  }

  absl::Status Quantifier() {
    COMOE_RETURN_IF_ERROR(PrepareAtom());
    out_.push_back(pattern_[pos_++]);
    if (LooksAt("?") || LooksAt("+")) {
      out_.push_back(pattern_[pos_++]);
    }
    return absl::OkStatus();
  }

  // {n} {n,} {n,m} {,m}; anything else is a literal brace.
  absl::Status Interval() {
    const std::size_t end = pattern_.find('}', pos_);
    absl::string_view inside;
    if (end != absl::string_view::npos) {
      inside = pattern_.substr(pos_ + 1, end - pos_ - 1);
    }
    const std::size_t comma = inside.find(',');
    const absl::string_view low = inside.substr(0, comma);
    const absl::string_view high = comma == absl::string_view::npos ? low : inside.substr(comma + 1);
    std::uint32_t low_value = 0;
    std::uint32_t high_value = kMaxRepeat;
    const auto is_number = [](absl::string_view text, std::uint32_t* value) {
      return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos &&
             absl::SimpleAtoi(text, value);
    };
    const bool is_interval = (is_number(low, &low_value) || low.empty()) &&
                             (is_number(high, &high_value) || high.empty()) && !(low.empty() && high.empty());
    if (!is_interval) {
      BeginAtom();
      out_ += "\\{";
      ++pos_;
      return absl::OkStatus();
    }
    if (low_value > kMaxRepeat || high_value > kMaxRepeat || high_value < low_value) {
      return Unsupported(absl::StrCat("the repeat {", inside, "}"));
    }
    COMOE_RETURN_IF_ERROR(PrepareAtom());
    absl::StrAppend(&out_, "{", low_value);
    if (comma != absl::string_view::npos) {
      absl::StrAppend(&out_, ",", high);
    }
    out_.push_back('}');
    pos_ = end + 1;
    if (LooksAt("?")) {
      if (comma == absl::string_view::npos) {  // {n}? is (?:..{n})?
        Wrap();
      }
      out_.push_back('?');
      ++pos_;
    }
    return absl::OkStatus();  // a '+' that follows is a quantifier of its own
  }

  absl::string_view pattern_;
  std::size_t pos_ = 0;
  std::string out_;
  std::vector<Group> groups_;
  std::size_t atom_begin_ = 0;
  bool has_atom_ = false;
  bool is_quantified_ = false;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern) {
  if (!IsValidUtf8(pattern)) {
    return absl::InvalidArgumentError("regular expression: not UTF-8");
  }
  return Translator(pattern).Run();
}

}  // namespace comoe::tokenizer
