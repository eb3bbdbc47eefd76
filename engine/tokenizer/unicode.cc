#include "engine/tokenizer/unicode.h"

#include <utf8proc.h>

#include "engine/tokenizer/unicode_reference.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

utf8proc_category_t CategoryOf(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool IsBetween(char32_t c, char32_t low, char32_t high) { return low <= c && c <= high; }

}  // namespace

bool IsWhitespace(char32_t c) {
  if (c < 0x80) {
    return c == ' ' || IsBetween(c, 0x09, 0x0D);
  }
  return c == 0x85 || c == 0xA0 || c == 0x1680 || IsBetween(c, 0x2000, 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) {
    return IsBetween(c, '0', '9');
  }
  const utf8proc_category_t category = CategoryOf(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return IsBetween(c, '!', '/') || IsBetween(c, ':', '@') || IsBetween(c, '[', '`') ||
           IsBetween(c, '{', '~');
  }
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return !IsPunctuationOtherwiseInReference(c);
    default:
      return IsPunctuationOtherwiseInReference(c);
  }
}

bool IsMark(char32_t c) {
  if (c < 0x300) {
    return false;
  }
  const utf8proc_category_t category = CategoryOf(c);
  const bool is_mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                       category == UTF8PROC_CATEGORY_ME;
  return is_mark != IsMarkOtherwiseInReference(c);
}

bool IsWordCharacter(char32_t c) {
  if (c < 0x80) {
    return IsBetween(c, '0', '9') || IsBetween(c, 'A', 'Z') || IsBetween(c, 'a', 'z') || c == '_';
  }
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // the symbols that are Other_Alphabetic: circled and squared letters
      return IsBetween(c, 0x24B6, 0x24E9) || IsBetween(c, 0x1F130, 0x1F149) ||
             IsBetween(c, 0x1F150, 0x1F169) || IsBetween(c, 0x1F170, 0x1F189);
    default:
      return c == 0x200C || c == 0x200D;  // zero width (non-)joiner
  }
}

void AppendLowercase(char32_t c, std::string* out) {
  if (c == 0x130) {  // the only code point whose unconditional lower case is two code points
    out->append("i\xCC\x87");
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

}  // namespace comoe::tokenizer
