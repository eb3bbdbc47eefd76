#include "cli/forced_texts.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/json_file.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/numpy_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "scheduler/routing/trace_file.h"

namespace comoe::cli {
namespace {

constexpr std::uint64_t kTraceLimitBytes = std::uint64_t{4} << 30;
// Tokens that plain text is cut into: long enough for a routing of its own, short enough that a file of 64 KB
// fills a batch of 64.
constexpr std::size_t kTextTokens = 256;

absl::StatusOr<Texts> ReadPlainText(const std::string& path, const std::string& model,
                                    std::int32_t vocab_size) {
  if (!IsThere(model + "/tokenizer.json")) {
    return absl::InvalidArgumentError(absl::StrCat("--text needs the model's tokenizer, and ", model,
                                                   " has no tokenizer.json: give --force-ids"));
  }
  COMOE_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, tokenizer::kMaxEncodeBytes));
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<tokenizer::Tokenizer> tokenizer,
                         tokenizer::Tokenizer::Load(model + "/tokenizer.json"));
  const absl::StatusOr<std::vector<base::TokenId>> encoded =
      tokenizer->Encode(text, /*add_special_tokens=*/false);
  COMOE_RETURN_IF_ERROR(base::Annotate(encoded.status(), path));
  const std::vector<base::TokenId>& ids = *encoded;
  if (ids.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no text"));
  }
  if (const base::TokenId highest = *std::max_element(ids.begin(), ids.end()); highest >= vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer of ", model, " makes token ", highest,
                                                   ", of a vocabulary of ", vocab_size));
  }
  Texts texts;
  for (std::size_t at = 0; at < ids.size(); at += kTextTokens) {
    const std::size_t count = std::min(kTextTokens, ids.size() - at);
    if (count == kTextTokens || texts.empty()) {  // what is left over would make all texts short
      texts.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at),
                         ids.begin() + static_cast<std::ptrdiff_t>(at + count));
    }
  }
  return texts;
}

}  // namespace

void AddTextFlags(CLI::App& app, TextFlags& flags, const std::string& by_default) {
  CLI::Option* const ids = app.add_option(
      "--force-ids", flags.ids,
      absl::StrCat("texts as ids: a routing_trace.npz, a trace, or JSON {\"ids\": [[id, ...], ...]}",
                   by_default.empty() ? "" : absl::StrCat(" (default: ", by_default, ")")));
  app.add_option("--text", flags.text,
                 absl::StrCat("or plain text (UTF-8), cut into texts of ", kTextTokens, " tokens"))
      ->excludes(ids);
}

absl::StatusOr<Texts> ReadTexts(const TextFlags& flags, const std::string& model, std::int32_t vocab_size) {
  return flags.text.empty() ? ReadForcedIds(flags.ids, vocab_size)
                            : ReadPlainText(flags.text, model, vocab_size);
}

absl::StatusOr<Texts> ReadForcedIds(const std::string& path, std::int32_t vocab_size) {
  Texts texts;
  if (routing::LooksLikeTrace(path)) {
    COMOE_ASSIGN_OR_RETURN(routing::Trace trace, routing::ReadTrace(path));
    for (routing::TraceSequence& sequence : trace.sequences) {
      for (const base::TokenId id : sequence.tokens) {
        if (id >= vocab_size) {
          return absl::InvalidArgumentError(absl::StrCat(path, ": token ", id, " of sequence ", sequence.id,
                                                         ", of a vocabulary of ", vocab_size));
        }
      }
      texts.push_back(std::move(sequence.tokens));
    }
    return texts;
  }
  if (!absl::EndsWith(path, ".npz")) {
    COMOE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
    if (!document.is_object() || !document.contains("ids") || !document["ids"].is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has no array \"ids\""));
    }
    for (const nlohmann::json& text : document["ids"]) {
      COMOE_ASSIGN_OR_RETURN(std::vector<base::TokenId> ids,
                             TokenIds(text, vocab_size, absl::StrCat(path, ": ids")));
      texts.push_back(std::move(ids));
    }
    return texts;
  }
  COMOE_ASSIGN_OR_RETURN(const auto arrays, checkpoint::ReadNpz(path, kTraceLimitBytes));
  const auto found = arrays.find("ids");
  if (found == arrays.end() || found->second.shape.size() != 2 ||
      found->second.dtype == checkpoint::NumpyDType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no integer array ids [S, T]"));
  }
  const checkpoint::NumpyArray& ids = found->second;
  for (std::int64_t s = 0; s < ids.shape[0]; ++s) {
    std::vector<base::TokenId>& text = texts.emplace_back();
    for (std::int64_t t = 0; t < ids.shape[1]; ++t) {
      const std::int64_t id = ids.IntegerAt(s * ids.shape[1] + t);
      if (id < 0 || id >= vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ids[", s, ", ", t, "] is ", id, ", of a vocabulary of ", vocab_size));
      }
      text.push_back(static_cast<base::TokenId>(id));
    }
  }
  return texts;
}

}  // namespace comoe::cli
