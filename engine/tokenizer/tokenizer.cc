#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/decoder.h"
#include "engine/tokenizer/json_fields.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/post_processor.h"
#include "engine/tokenizer/pre_tokenized.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/tokenizer_file.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {

struct Tokenizer::Impl {
  std::unique_ptr<BpeModel> model;
  AddedTokens added;
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null
  std::vector<TemplatePiece> post_processor;
  Decoder decoder;
  base::TokenId id_end = 0;

  absl::Status Cut(absl::string_view text, PreTokenized* out) const;
  absl::Status CutNormalized(const AlignedText& text, PreTokenized* out) const;
  absl::StatusOr<std::vector<TokenSpan>> Tokenize(absl::string_view text, bool tracked) const;
  absl::StatusOr<std::vector<TokenSpan>> Encode(absl::string_view text, bool add_special_tokens,
                                                bool tracked) const;
};

namespace {

absl::Status CheckVersion(const JsonField& root) {
  if (!root.Has("version")) {
    return absl::OkStatus();
  }
  constexpr absl::string_view kVersions[] = {"1.0"};
  return root.GetChoice("version", kVersions).status();
}

// `truncation` and `padding`.
absl::Status CheckAbsent(const JsonField& root, absl::string_view name) {
  if (!root.Has(name)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      root.path(), name, ": not supported; set it to null (requests carry their own limits on length)"));
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  COMOE_ASSIGN_OR_RETURN(const std::string json, base::ReadFile(path, kMaxTokenizerFileBytes));
  return Parse(json, path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(absl::string_view json, absl::string_view name) {
  COMOE_ASSIGN_OR_RETURN(const TokenizerFile file, ReadTokenizerFile(json, name));
  const nlohmann::json null;
  const JsonField root(&file.root, absl::StrCat(name, ": "));
  const auto optional = [&](absl::string_view field) {
    return root.Has(field) ? root.Get(field) : JsonField(&null, absl::StrCat(root.path(), field));
  };
  COMOE_RETURN_IF_ERROR(CheckVersion(root));
  COMOE_RETURN_IF_ERROR(CheckAbsent(root, "truncation"));
  COMOE_RETURN_IF_ERROR(CheckAbsent(root, "padding"));
  auto impl = std::make_unique<Impl>();
  COMOE_ASSIGN_OR_RETURN(const JsonField model, root.Get("model"));
  COMOE_ASSIGN_OR_RETURN(impl->model, BpeModel::Create(model, file));
  COMOE_ASSIGN_OR_RETURN(const JsonField normalizer, optional("normalizer"));
  COMOE_ASSIGN_OR_RETURN(impl->normalizer, ParseNormalizer(normalizer));
  COMOE_ASSIGN_OR_RETURN(const JsonField pre_tokenizer, optional("pre_tokenizer"));
  COMOE_ASSIGN_OR_RETURN(impl->pre_tokenizer, ParsePreTokenizer(pre_tokenizer));
  if (root.Has("added_tokens")) {
    COMOE_ASSIGN_OR_RETURN(const JsonField added, root.Get("added_tokens"));
    COMOE_ASSIGN_OR_RETURN(impl->added, AddedTokens::Parse(added, *impl->model, impl->normalizer.get()));
  }
  impl->id_end = impl->model->id_end();
  for (const AddedToken& token : impl->added.tokens()) {
    impl->id_end = std::max(impl->id_end, token.id + 1);
  }
  COMOE_ASSIGN_OR_RETURN(const JsonField post_processor, optional("post_processor"));
  COMOE_ASSIGN_OR_RETURN(impl->post_processor, ParsePostProcessor(post_processor, impl->id_end));
  COMOE_ASSIGN_OR_RETURN(const JsonField decoder, optional("decoder"));
  COMOE_ASSIGN_OR_RETURN(impl->decoder, Decoder::Parse(decoder));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

// Normalises a stretch without raw added tokens and cuts it at the normalised ones.
absl::Status Tokenizer::Impl::CutNormalized(const AlignedText& text, PreTokenized* out) const {
  std::vector<Piece> pieces;
  added.Find(AddedTokens::Set::kNormalized, text.view(), &pieces);
  for (const Piece& piece : pieces) {
    COMOE_RETURN_IF_ERROR(out->Append(text, piece.begin, piece.end, piece.token));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::Cut(absl::string_view text, PreTokenized* out) const {
  std::vector<Piece> pieces;
  added.Find(AddedTokens::Set::kRaw, text, &pieces);
  for (const Piece& piece : pieces) {
    AlignedText part = AlignedText::FromOriginal(text.substr(piece.begin, piece.end - piece.begin),
                                                 piece.begin, out->text().tracked());
    if (piece.token != kNoToken) {
      COMOE_RETURN_IF_ERROR(out->Append(part, 0, part.size(), piece.token));
      continue;
    }
    if (normalizer != nullptr) {
      COMOE_RETURN_IF_ERROR(normalizer->Normalize(&part));
    }
    COMOE_RETURN_IF_ERROR(CutNormalized(part, out));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenSpan>> Tokenizer::Impl::Tokenize(absl::string_view text, bool tracked) const {
  PreTokenized pre_tokenized(tracked || (pre_tokenizer != nullptr && pre_tokenizer->needs_spans()));
  COMOE_RETURN_IF_ERROR(Cut(text, &pre_tokenized));
  if (pre_tokenizer != nullptr) {
    COMOE_RETURN_IF_ERROR(pre_tokenizer->Apply(&pre_tokenized));
  }
  const AlignedText& worked = pre_tokenized.text();
  const auto span_of = [&worked](std::size_t begin, std::size_t end) -> std::pair<std::size_t, std::size_t> {
    if (begin == end) {
      return {0, 0};
    }
    return {worked.span(begin).begin, worked.span(end - 1).end};
  };
  std::vector<TokenSpan> tokens;
  std::vector<BpeToken> piece_tokens;
  BpeModel::Scratch scratch;
  for (const Piece& piece : pre_tokenized.pieces()) {
    if (piece.token != kNoToken) {
      const auto span = span_of(piece.begin, piece.end);
      tokens.push_back({piece.token, span.first, span.second});
      continue;
    }
    piece_tokens.clear();
    COMOE_RETURN_IF_ERROR(model->Encode(worked.view(piece.begin, piece.end), &scratch, &piece_tokens));
    for (const BpeToken& token : piece_tokens) {
      const auto span = span_of(piece.begin + token.begin, piece.begin + token.end);
      tokens.push_back({token.id, span.first, span.second});
    }
  }
  return tokens;
}

absl::StatusOr<std::vector<TokenSpan>> Tokenizer::Impl::Encode(absl::string_view text,
                                                               bool add_special_tokens, bool tracked) const {
  if (text.size() > kMaxEncodeBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes; the limit is ", kMaxEncodeBytes));
  }
  if (const Utf8Scan scan = ScanUtf8(text); scan.valid_bytes != text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the text is not UTF-8 at byte ", scan.valid_bytes));
  }
  COMOE_ASSIGN_OR_RETURN(std::vector<TokenSpan> tokens, Tokenize(text, tracked));
  if (post_processor.size() == 1 && post_processor[0].is_text) {
    return tokens;
  }
  std::vector<TokenSpan> out;
  for (const TemplatePiece& piece : post_processor) {
    if (piece.is_text) {
      out.insert(out.end(), tokens.begin(), tokens.end());
    } else if (add_special_tokens) {
      for (const base::TokenId id : piece.ids) {
        out.push_back({id, 0, 0});
      }
    }
  }
  return out;
}

absl::StatusOr<std::vector<base::TokenId>> Tokenizer::Encode(absl::string_view text,
                                                             bool add_special_tokens) const {
  COMOE_ASSIGN_OR_RETURN(const std::vector<TokenSpan> tokens, impl_->Encode(text, add_special_tokens, false));
  std::vector<base::TokenId> ids;
  ids.reserve(tokens.size());
  for (const TokenSpan& token : tokens) {
    ids.push_back(token.id);
  }
  return ids;
}

absl::StatusOr<std::vector<TokenSpan>> Tokenizer::EncodeWithOffsets(absl::string_view text,
                                                                    bool add_special_tokens) const {
  return impl_->Encode(text, add_special_tokens, true);
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const base::TokenId> ids,
                                              bool skip_special_tokens) const {
  const std::unique_ptr<DecodePipeline> pipeline = NewPipeline();
  for (const base::TokenId id : ids) {
    COMOE_ASSIGN_OR_RETURN(const absl::string_view token, DecoderToken(id));
    if (!skip_special_tokens || !IsSpecial(id)) {
      COMOE_RETURN_IF_ERROR(pipeline->Push(token));
    }
  }
  COMOE_RETURN_IF_ERROR(pipeline->Finish());
  return pipeline->TakeText();
}

std::unique_ptr<DecodePipeline> Tokenizer::NewPipeline() const { return impl_->decoder.NewPipeline(); }

absl::StatusOr<absl::string_view> Tokenizer::DecoderToken(base::TokenId id) const {
  if (const AddedToken* added = impl_->added.FindId(id); added != nullptr) {
    return absl::string_view(added->decoded);
  }
  if (const std::optional<absl::string_view> token = impl_->model->IdToToken(id); token.has_value()) {
    return *token;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("token id ", id, " is not in the vocabulary of ", impl_->id_end, " ids"));
}

int Tokenizer::vocab_size() const { return impl_->id_end; }

std::optional<base::TokenId> Tokenizer::TokenToId(absl::string_view token) const {
  if (const AddedToken* added = impl_->added.FindContent(token); added != nullptr) {
    return added->id;
  }
  return impl_->model->TokenToId(token);
}

absl::StatusOr<std::string> Tokenizer::IdToToken(base::TokenId id) const {
  if (const AddedToken* added = impl_->added.FindId(id); added != nullptr) {
    return added->content;
  }
  COMOE_ASSIGN_OR_RETURN(const absl::string_view token, DecoderToken(id));
  return std::string(token);
}

bool Tokenizer::IsSpecial(base::TokenId id) const { return impl_->added.IsSpecial(id); }

std::string Tokenizer::TokenBytes(base::TokenId id) const {
  const absl::StatusOr<absl::string_view> token = DecoderToken(id);
  return token.ok() ? impl_->decoder.TokenBytes(*token) : std::string();
}

}  // namespace comoe::tokenizer
