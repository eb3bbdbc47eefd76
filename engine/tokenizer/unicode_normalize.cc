#include "engine/tokenizer/unicode_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/tokenizer/unicode_reference.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

// Hangul syllables compose and decompose by arithmetic (The Unicode Standard, section 3.12).
constexpr char32_t kSyllableBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161, kTrailBase = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28;

constexpr std::size_t kMaxDecomposition = 18;  // U+FDFA; no code point of any Unicode version has more
// No code point below U+0300 changes under NFC.
constexpr char32_t kFirstNfcChange = 0x300;
// Canonical decompositions of pairs lie between these (U+00C0, and the last compatibility ideograph).
constexpr char32_t kFirstComposite = 0xC0, kLastComposite = 0x2FA1D;

struct Item {
  char32_t c = 0;
  int combining_class = 0;
  ByteSpan span;
};

std::size_t Decompose(char32_t c, bool compatibility, std::array<utf8proc_int32_t, kMaxDecomposition>* out) {
  if (IsWholeInReference(c)) {
    (*out)[0] = static_cast<utf8proc_int32_t>(c);
    return 1;
  }
  int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE;
  if (compatibility) {
    options |= UTF8PROC_COMPAT;
  }
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out->data(),
                                             static_cast<utf8proc_ssize_t>(out->size()),
                                             static_cast<utf8proc_option_t>(options), &boundary);
  if (count < 1 || static_cast<std::size_t>(count) > out->size()) {
    (*out)[0] = static_cast<utf8proc_int32_t>(c);
    return 1;
  }
  return static_cast<std::size_t>(count);
}

int CombiningClass(char32_t c) {
  const int combining_class =
      c < 0x300 ? 0 : utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
  return combining_class != 0 && IsMarkOtherwiseInReference(c) ? 0 : combining_class;
}

// The primary composites. The library composes whole strings only and says nothing about which parts went
// where, so the pairs are collected from its decompositions: a composite of n parts is (composite of the
// first n-1, last).
class CompositionTable {
 public:
  static const CompositionTable& Get() {
    static const CompositionTable table;
    return table;
  }

  // 0 when the two do not compose.
  char32_t Compose(char32_t first, char32_t second) const {
    if (first - kLeadBase < kLeads && second - kVowelBase < kVowels) {
      return kSyllableBase + ((first - kLeadBase) * kVowels + (second - kVowelBase)) * kTrails;
    }
    if (first - kSyllableBase < kLeads * kVowels * kTrails && (first - kSyllableBase) % kTrails == 0 &&
        second > kTrailBase && second < kTrailBase + kTrails) {
      return first + (second - kTrailBase);
    }
    const auto found = pairs_.find(Key(first, second));
    return found == pairs_.end() ? 0 : found->second;
  }

 private:
  CompositionTable() {
    std::array<utf8proc_int32_t, kMaxDecomposition> parts{};
    for (std::size_t wanted = 2; wanted <= 4; ++wanted) {  // canonical decompositions have at most four parts
      for (char32_t c = kFirstComposite; c <= kLastComposite; ++c) {
        if (c - kSyllableBase < kLeads * kVowels * kTrails ||
            utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->comp_exclusion != 0 ||
            Decompose(c, false, &parts) != wanted) {
          continue;
        }
        auto first = static_cast<char32_t>(parts[0]);
        for (std::size_t i = 1; i + 1 < wanted && first != 0; ++i) {
          first = Compose(first, static_cast<char32_t>(parts[i]));
        }
        if (first != 0) {
          pairs_.emplace(Key(first, static_cast<char32_t>(parts[wanted - 1])), c);
        }
      }
    }
  }

  static std::uint64_t Key(char32_t first, char32_t second) { return std::uint64_t{first} << 32 | second; }

  absl::flat_hash_map<std::uint64_t, char32_t> pairs_;
};

// Longer first would be as right: the order within a run is by combining class, ties keep their order.
void ReorderMarks(std::vector<Item>* items) {
  for (std::size_t i = 0; i < items->size();) {
    if ((*items)[i].combining_class == 0) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < items->size() && (*items)[end].combining_class != 0) {
      ++end;
    }
    if (end - i > 1) {
      std::stable_sort(items->begin() + static_cast<std::ptrdiff_t>(i),
                       items->begin() + static_cast<std::ptrdiff_t>(end),
                       [](const Item& a, const Item& b) { return a.combining_class < b.combining_class; });
    }
    i = end;
  }
}

// A mark composes with the last starter unless a mark of the same or a higher class stands between them.
void ComposeItems(std::vector<Item>* items) {
  const CompositionTable& table = CompositionTable::Get();
  std::size_t kept = 0;
  std::size_t starter = 0;
  bool has_starter = false;
  int last_class = 0;  // of the marks kept behind the starter, 0: none
  for (std::size_t i = 0; i < items->size(); ++i) {
    const Item item = (*items)[i];
    if (has_starter && item.c >= kFirstNfcChange && (last_class == 0 || last_class < item.combining_class)) {
      Item& base = (*items)[starter];
      if (const char32_t composite = table.Compose(base.c, item.c); composite != 0) {
        base.c = composite;
        base.span = {std::min(base.span.begin, item.span.begin), std::max(base.span.end, item.span.end)};
        continue;
      }
    }
    if (item.combining_class == 0) {
      starter = kept;
      has_starter = true;
      last_class = 0;
    } else {
      last_class = item.combining_class;
    }
    (*items)[kept++] = item;
  }
  items->resize(kept);
}

bool IsUnchanged(NormalForm form, absl::string_view text) {
  const char32_t first_change = form == NormalForm::kNfc ? kFirstNfcChange : 0x80;
  for (std::size_t i = 0; i < text.size();) {
    if (NextCodePoint(text, &i) >= first_change) {
      return false;
    }
  }
  return true;
}

}  // namespace

void NormalizeUnicode(NormalForm form, AlignedText* text) {
  if (IsUnchanged(form, text->view())) {
    return;
  }
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  std::vector<Item> items;
  items.reserve(text->size());
  std::array<utf8proc_int32_t, kMaxDecomposition> parts{};
  const absl::string_view source = text->view();
  for (std::size_t i = 0; i < source.size();) {
    const ByteSpan span = text->span(i);
    const char32_t c = NextCodePoint(source, &i);
    if (c < 0x80) {
      items.push_back({c, 0, span});
      continue;
    }
    const std::size_t count = Decompose(c, compatibility, &parts);
    for (std::size_t part = 0; part < count; ++part) {
      const auto piece = static_cast<char32_t>(parts[part]);
      items.push_back({piece, CombiningClass(piece), span});
    }
  }
  ReorderMarks(&items);
  if (compose) {
    ComposeItems(&items);
  }
  AlignedText out(text->tracked());
  out.reserve(text->size());
  std::string utf8;
  for (const Item& item : items) {
    utf8.clear();
    AppendUtf8(item.c, &utf8);
    out.Append(utf8, item.span);
  }
  *text = std::move(out);
}

}  // namespace comoe::tokenizer
