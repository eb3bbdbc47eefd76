#include "engine/tokenizer/decoder.h"

#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

constexpr std::size_t kMaxStages = 64;  // each calls the next; files in use have at most five
// What one Decode, or one step of a stream, may put out: replacements come from a file and multiply.
constexpr std::size_t kMaxDecodedBytes = std::size_t{512} << 20;

}  // namespace

std::optional<char> ByteOfToken(absl::string_view token) {
  constexpr absl::string_view kHexDigits = "0123456789abcdefABCDEF";
  if (token.size() != kByteTokenSize || !absl::StartsWith(token, "<0x") || token[5] != '>') {
    return std::nullopt;
  }
  const absl::string_view digits = token.substr(3, 2);
  std::uint32_t value = 0;
  if (digits.find_first_not_of(kHexDigits) != absl::string_view::npos ||
      !absl::SimpleHexAtoi(digits, &value)) {
    return std::nullopt;
  }
  return static_cast<char>(static_cast<unsigned char>(value));
}

class DecodePipeline::Collector : public DecodeSink {
 public:
  absl::Status Text(absl::string_view fragment) override {
    if (text_.size() + fragment.size() > kMaxDecodedBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the decoded text is longer than ", kMaxDecodedBytes, " bytes"));
    }
    text_.append(fragment.data(), fragment.size());
    return absl::OkStatus();
  }
  absl::Status EndToken() override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }
  std::string Take() { return std::exchange(text_, {}); }

 private:
  std::string text_;
};

DecodePipeline::DecodePipeline(const std::vector<StageFactory>& factories)
    : collector_(std::make_unique<Collector>()), first_(collector_.get()) {
  for (auto factory = factories.rbegin(); factory != factories.rend(); ++factory) {
    stages_.push_back((*factory)(first_));
    first_ = stages_.back().get();
  }
}
DecodePipeline::~DecodePipeline() = default;

absl::Status DecodePipeline::Push(absl::string_view token) {
  COMOE_RETURN_IF_ERROR(first_->Text(token));
  return first_->EndToken();
}

absl::Status DecodePipeline::Finish() { return first_->Finish(); }

std::string DecodePipeline::TakeText() { return collector_->Take(); }

absl::StatusOr<Decoder> Decoder::Parse(const JsonField& field) {
  Decoder decoder;
  if (field.is_null()) {
    decoder.factories_.push_back([](DecodeSink* next) { return std::make_unique<JoinStage>(next); });
    return decoder;
  }
  COMOE_RETURN_IF_ERROR(decoder.Add(field));
  return decoder;
}

absl::Status Decoder::Add(const JsonField& field) {
  if (factories_.size() >= kMaxStages) {
    return field.Error(absl::StrCat("more than ", kMaxStages, " decoders"));
  }
  constexpr absl::string_view kTypes[] = {"ByteLevel", "ByteFallback", "Fuse",      "Strip",   "Replace",
                                          "Metaspace", "BPEDecoder",   "WordPiece", "Sequence"};
  COMOE_ASSIGN_OR_RETURN(const std::size_t choice, field.GetChoice("type", kTypes));
  const absl::string_view type = kTypes[choice];
  if (type == "ByteLevel") {
    factories_.push_back([](DecodeSink* next) { return std::make_unique<ByteLevelStage>(next); });
    token_maps_.push_back([](const std::string& token) {
      return IsValidUtf8(token) ? ByteLevelBytes(token).value_or(token)
                                : token;  // a map before may have made bytes
    });
  } else if (type == "ByteFallback") {
    factories_.push_back([](DecodeSink* next) { return std::make_unique<ByteFallbackStage>(next); });
    token_maps_.push_back([](const std::string& token) {
      const std::optional<char> byte = ByteOfToken(token);
      return byte.has_value() ? std::string(1, *byte) : token;
    });
  } else if (type == "Fuse") {
    factories_.push_back([](DecodeSink* next) { return std::make_unique<FuseStage>(next); });
  } else if (type == "Strip") {
    COMOE_ASSIGN_OR_RETURN(const char32_t content, field.GetCharacter("content"));
    COMOE_ASSIGN_OR_RETURN(const std::int64_t start, field.GetInt("start", 0, INT64_MAX));
    COMOE_ASSIGN_OR_RETURN(const std::int64_t stop, field.GetInt("stop", 0, INT64_MAX));
    factories_.push_back([content, start, stop](DecodeSink* next) {
      return std::make_unique<StripStage>(content, static_cast<std::uint64_t>(start),
                                          static_cast<std::uint64_t>(stop), next);
    });
  } else if (type == "Replace") {
    return AddReplace(field);
  } else if (type == "Metaspace") {
    return AddMetaspace(field);
  } else if (type == "BPEDecoder") {
    COMOE_ASSIGN_OR_RETURN(const std::string suffix, field.GetString("suffix"));
    if (suffix.empty()) {
      return field.Error("suffix is empty");
    }
    factories_.push_back(
        [suffix](DecodeSink* next) { return std::make_unique<BpeSuffixStage>(suffix, next); });
    token_maps_.push_back([suffix](const std::string& token) {
      return absl::StrReplaceAll(token, {{suffix, " "}});
    });
  } else if (type == "WordPiece") {
    COMOE_ASSIGN_OR_RETURN(const std::string prefix, field.GetString("prefix"));
    COMOE_ASSIGN_OR_RETURN(const bool cleanup, field.GetBool("cleanup"));
    factories_.push_back([prefix, cleanup](DecodeSink* next) {
      return std::make_unique<WordPieceStage>(prefix, cleanup, next);
    });
  } else {
    COMOE_ASSIGN_OR_RETURN(const std::vector<JsonField> elements, field.GetArray("decoders"));
    for (const JsonField& element : elements) {
      COMOE_RETURN_IF_ERROR(Add(element));
    }
  }
  return absl::OkStatus();
}

absl::Status Decoder::AddReplace(const JsonField& field) {
  COMOE_ASSIGN_OR_RETURN(const JsonField pattern_field, field.Get("pattern"));
  COMOE_ASSIGN_OR_RETURN(std::unique_ptr<Pattern> parsed, Pattern::Parse(pattern_field));
  COMOE_ASSIGN_OR_RETURN(const std::string content, field.GetString("content"));
  if (parsed->is_literal()) {
    const std::string literal = parsed->literal();
    factories_.push_back([literal, content](DecodeSink* next) {
      return std::make_unique<ReplaceLiteralStage>(literal, content, next);
    });
    token_maps_.push_back([literal, content](const std::string& token) {
      return absl::StrReplaceAll(token, {{literal, content}});
    });
    return absl::OkStatus();
  }
  const std::shared_ptr<const Pattern> pattern = std::move(parsed);
  factories_.push_back([pattern, content](DecodeSink* next) {
    return std::make_unique<ReplacePatternStage>(pattern, content, next);
  });
  return absl::OkStatus();
}

absl::Status Decoder::AddMetaspace(const JsonField& field) {
  constexpr absl::string_view kSchemes[] = {"always", "first", "never"};
  COMOE_ASSIGN_OR_RETURN(const char32_t replacement, field.GetCharacter("replacement"));
  bool has_prefix = true;
  if (field.Has("prepend_scheme")) {
    COMOE_ASSIGN_OR_RETURN(const std::size_t choice, field.GetChoice("prepend_scheme", kSchemes));
    has_prefix = kSchemes[choice] != "never";
  }
  COMOE_ASSIGN_OR_RETURN(const bool add_prefix_space, field.GetBoolOr("add_prefix_space", true));
  has_prefix = has_prefix && add_prefix_space;
  factories_.push_back([replacement, has_prefix](DecodeSink* next) {
    return std::make_unique<MetaspaceStage>(replacement, has_prefix, next);
  });
  const std::string utf8 = ToUtf8(replacement);
  token_maps_.push_back([utf8](const std::string& token) {
    return absl::StrReplaceAll(token, {{utf8, " "}});
  });
  return absl::OkStatus();
}

std::string Decoder::TokenBytes(absl::string_view token) const {
  std::string bytes(token);
  for (const auto& map : token_maps_) {
    bytes = map(std::move(bytes));
  }
  return bytes;
}

}  // namespace comoe::tokenizer
