// Unicode properties of TranslateRegex: Oniguruma's names in PCRE2's.
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/regex_syntax.h"

namespace comoe::tokenizer {
namespace {

// Names of Unicode properties whose meaning does not depend on the engine, lower case without separators.
const absl::flat_hash_map<absl::string_view, absl::string_view>& PropertyTable() {
  static const absl::flat_hash_map<absl::string_view, absl::string_view> table = {
      {"letter", "L"},
      {"uppercaseletter", "Lu"},
      {"lowercaseletter", "Ll"},
      {"titlecaseletter", "Lt"},
      {"modifierletter", "Lm"},
      {"otherletter", "Lo"},
      {"mark", "M"},
      {"combiningmark", "M"},
      {"nonspacingmark", "Mn"},
      {"spacingmark", "Mc"},
      {"enclosingmark", "Me"},
      {"number", "N"},
      {"decimalnumber", "Nd"},
      {"letternumber", "Nl"},
      {"othernumber", "No"},
      {"punctuation", "P"},
      {"connectorpunctuation", "Pc"},
      {"dashpunctuation", "Pd"},
      {"openpunctuation", "Ps"},
      {"closepunctuation", "Pe"},
      {"initialpunctuation", "Pi"},
      {"finalpunctuation", "Pf"},
      {"otherpunctuation", "Po"},
      {"symbol", "S"},
      {"mathsymbol", "Sm"},
      {"currencysymbol", "Sc"},
      {"modifiersymbol", "Sk"},
      {"othersymbol", "So"},
      {"separator", "Z"},
      {"spaceseparator", "Zs"},
      {"lineseparator", "Zl"},
      {"paragraphseparator", "Zp"},
      {"other", "C"},
      {"control", "Cc"},
      {"format", "Cf"},
      {"unassigned", "Cn"},
      {"privateuse", "Co"},
      {"surrogate", "Cs"},
      {"l", "L"},
      {"lu", "Lu"},
      {"ll", "Ll"},
      {"lt", "Lt"},
      {"lm", "Lm"},
      {"lo", "Lo"},
      {"m", "M"},
      {"mn", "Mn"},
      {"mc", "Mc"},
      {"me", "Me"},
      {"n", "N"},
      {"nd", "Nd"},
      {"nl", "Nl"},
      {"no", "No"},
      {"punct", "P"},
      {"p", "P"},
      {"pc", "Pc"},
      {"pd", "Pd"},
      {"ps", "Ps"},
      {"pe", "Pe"},
      {"pi", "Pi"},
      {"pf", "Pf"},
      {"po", "Po"},
      {"s", "S"},
      {"sm", "Sm"},
      {"sc", "Sc"},
      {"sk", "Sk"},
      {"so", "So"},
      {"z", "Z"},
      {"zs", "Zs"},
      {"zl", "Zl"},
      {"zp", "Zp"},
      {"c", "C"},
      {"cc", "Cc"},
      {"cf", "Cf"},
      {"cn", "Cn"},
      {"co", "Co"},
      {"cs", "Cs"},
      {"digit", "Nd"},
      {"any", "Any"},
      {"alpha", "Alphabetic"},
      {"alphabetic", "Alphabetic"},
      {"upper", "Uppercase"},
      {"uppercase", "Uppercase"},
      {"lower", "Lowercase"},
      {"lowercase", "Lowercase"},
      {"space", "White_Space"},
      {"whitespace", "White_Space"},
      {"wspace", "White_Space"},
      {"cntrl", "Cc"},
      {"ideographic", "Ideographic"},
      {"emoji", "Emoji"},
      {"emojipresentation", "Emoji_Presentation"},
      {"extendedpictographic", "Extended_Pictographic"},
      {"dash", "Dash"},
      {"diacritic", "Diacritic"}};
  return table;
}

// The sets that are several properties together; only their plain form fits inside a class.
std::optional<absl::string_view> CompoundSet(absl::string_view key) {
  if (key == "word" || key == "w") return kWordItemsInClass;
  if (key == "alnum") return "\\p{Alphabetic}\\p{Nd}";
  if (key == kPosixPunctuation) return "\\p{P}\\p{S}";
  if (key == "xdigit") return "0-9A-Fa-f";
  if (key == "ascii") return "\\x00-\\x7f";
  if (key == "blank") return "\\p{Zs}\\t";
  return std::nullopt;
}

std::string PropertyKey(absl::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_') {
      key.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    }
  }
  return key;
}

}  // namespace

absl::StatusOr<PropertySet> TranslateProperty(absl::string_view name, bool negated) {
  const std::string key = PropertyKey(name);
  if (const std::optional<absl::string_view> compound = CompoundSet(key); compound.has_value()) {
    return negated ? PropertySet{absl::StrCat("[^", *compound, "]"), false}
                   : PropertySet{std::string(*compound), true};
  }
  const auto found = PropertyTable().find(key);
  if (found != PropertyTable().end()) {
    return PropertySet{absl::StrCat(negated ? "\\P{" : "\\p{", found->second, "}"), true};
  }
  for (const char c : key.empty() ? absl::string_view("?") : name) {
    if (!absl::ascii_isalpha(static_cast<unsigned char>(c)) && c != '_' && c != ' ' && c != '-') {
      return absl::UnimplementedError(absl::StrCat("regular expression: the property \\p{",
                                                   absl::CHexEscape(name), "} is not supported"));
    }
  }
  // A script; an unknown name (Oniguruma's blocks, In_..., too) is refused when the pattern is compiled.
  return PropertySet{absl::StrCat(negated ? "\\P{sc:" : "\\p{sc:", name, "}"), true};
}

}  // namespace comoe::tokenizer
