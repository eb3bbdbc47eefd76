#include "engine/tokenizer/post_processor.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::tokenizer {
namespace {

using Pieces = std::vector<TemplatePiece>;

// A template that names its text or a token many times would multiply what a request costs.
constexpr std::size_t kMaxPieces = 64;
constexpr std::size_t kMaxIdsPerToken = 1024;

Pieces JustText() { return {TemplatePiece{true, {}}}; }

absl::StatusOr<base::TokenId> ParseId(const JsonField& field, base::TokenId id_end) {
  COMOE_ASSIGN_OR_RETURN(const std::int64_t id, field.AsInt(0, std::int64_t{id_end} - 1));
  return static_cast<base::TokenId>(id);
}

// ["</s>", 2]
absl::StatusOr<base::TokenId> ParseTokenAndId(const JsonField& field, absl::string_view name,
                                              base::TokenId id_end) {
  COMOE_ASSIGN_OR_RETURN(const JsonField pair, field.Get(name));
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> parts, pair.AsArray());
  if (parts.size() != 2) {
    return pair.Error("a token and its id are expected");
  }
  return ParseId(parts[1], id_end);
}

absl::StatusOr<Pieces> ParseSeparators(const JsonField& field, base::TokenId id_end) {
  COMOE_ASSIGN_OR_RETURN(const base::TokenId cls, ParseTokenAndId(field, "cls", id_end));
  COMOE_ASSIGN_OR_RETURN(const base::TokenId sep, ParseTokenAndId(field, "sep", id_end));
  return Pieces{TemplatePiece{false, {cls}}, TemplatePiece{true, {}}, TemplatePiece{false, {sep}}};
}

using SpecialIds = absl::flat_hash_map<std::string, std::vector<base::TokenId>>;

absl::StatusOr<SpecialIds> ParseSpecialTokens(const JsonField& field, base::TokenId id_end) {
  SpecialIds specials;
  if (!field.is_object()) {
    return field.Error("an object is expected");
  }
  for (const auto& member : field.Members()) {
    COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> ids, member.second.GetArray("ids"));
    if (ids.size() > kMaxIdsPerToken) {
      return member.second.Error(absl::StrCat(ids.size(), " ids; the limit is ", kMaxIdsPerToken));
    }
    std::vector<base::TokenId>& out = specials[member.first];
    for (const JsonField& id : ids) {
      COMOE_ASSIGN_OR_RETURN(const base::TokenId value, ParseId(id, id_end));
      out.push_back(value);
    }
  }
  return specials;
}

absl::StatusOr<Pieces> ParseTemplate(const JsonField& field, base::TokenId id_end) {
  COMOE_ASSIGN_OR_RETURN(const JsonField specials_field, field.Get("special_tokens"));
  COMOE_ASSIGN_OR_RETURN(const SpecialIds specials, ParseSpecialTokens(specials_field, id_end));
  COMOE_ASSIGN_OR_RETURN(const JsonField single, field.Get("single"));
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> elements, single.AsArray());
  if (elements.size() > kMaxPieces) {
    return single.Error(absl::StrCat(elements.size(), " pieces; the limit is ", kMaxPieces));
  }
  Pieces pieces;
  for (const JsonField& element : elements) {
    if (element.Has("Sequence")) {
      COMOE_ASSIGN_OR_RETURN(const JsonField sequence, element.Get("Sequence"));
      constexpr absl::string_view kFirst[] = {"A"};
      COMOE_RETURN_IF_ERROR(sequence.GetChoice("id", kFirst).status());
      pieces.push_back({true, {}});
      continue;
    }
    if (!element.Has("SpecialToken")) {
      return element.Error("{\"Sequence\": ...} or {\"SpecialToken\": ...} is expected");
    }
    COMOE_ASSIGN_OR_RETURN(const JsonField special, element.Get("SpecialToken"));
    COMOE_ASSIGN_OR_RETURN(const std::string id, special.GetString("id"));
    const auto found = specials.find(id);
    if (found == specials.end()) {
      return special.Error(absl::StrCat("\"", absl::CHexEscape(id), "\" is not in special_tokens"));
    }
    pieces.push_back({false, found->second});
  }
  return pieces;
}

absl::StatusOr<Pieces> ParseSequence(const JsonField& field, base::TokenId id_end) {
  COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> elements, field.GetArray("processors"));
  Pieces pieces = JustText();
  bool has_pieces = false;
  for (const JsonField& element : elements) {
    if (element.is_null()) {
      return element.Error("null is no post-processor");
    }
    COMOE_ASSIGN_OR_RETURN(Pieces parsed, ParsePostProcessor(element, id_end));
    const bool adds_nothing = parsed.size() == 1 && parsed[0].is_text;
    if (adds_nothing) {
      continue;
    }
    if (std::exchange(has_pieces, true)) {
      return absl::UnimplementedError(
          absl::StrCat(element.path(), ": a second post-processor that adds tokens is not supported"));
    }
    pieces = std::move(parsed);
  }
  return pieces;
}

}  // namespace

absl::StatusOr<std::vector<TemplatePiece>> ParsePostProcessor(const JsonField& field, base::TokenId id_end) {
  if (field.is_null()) {
    return JustText();
  }
  constexpr absl::string_view kTypes[] = {"TemplateProcessing", "BertProcessing", "RobertaProcessing",
                                          "ByteLevel", "Sequence"};
  COMOE_ASSIGN_OR_RETURN(const std::size_t choice, field.GetChoice("type", kTypes));
  const absl::string_view type = kTypes[choice];
  if (type == "TemplateProcessing") return ParseTemplate(field, id_end);
  if (type == "Sequence") return ParseSequence(field, id_end);
  if (type == "ByteLevel") return JustText();  // it moves offsets only
  return ParseSeparators(field, id_end);
}

}  // namespace comoe::tokenizer
