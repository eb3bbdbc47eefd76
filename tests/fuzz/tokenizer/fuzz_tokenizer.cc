// The first line of the input is a text, the rest a tokenizer.json (so seeds stay readable). What loads must
// encode and decode without a crash, and a stream must give what a whole decoding gives.
//
//   fuzz_tokenizer -max_len=8192 -dict=tests/fuzz/tokenizer/tokenizer.dict tests/fuzz/tokenizer/corpus
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace {

using comoe::base::TokenId;
using comoe::tokenizer::StreamDecoder;
using comoe::tokenizer::Tokenizer;

void Require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void CheckDecoding(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const bool skip_special : {true, false}) {
    const auto whole = tokenizer.Decode(ids, skip_special);
    StreamDecoder stream(&tokenizer, skip_special);
    std::string text;
    bool failed = false;
    for (const TokenId id : ids) {
      const auto piece = stream.Push(id);
      failed = failed || !piece.ok();
      if (piece.ok()) {
        Require(comoe::tokenizer::IsValidUtf8(*piece));
        text += *piece;
      }
    }
    const auto rest = stream.Flush();
    failed = failed || !rest.ok();
    Require(failed == !whole.ok());
    Require(failed || text + *rest == *whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t line = input.find('\n');
  if (line == absl::string_view::npos) {
    return 0;
  }
  const absl::string_view text = input.substr(0, line);
  const auto tokenizer = Tokenizer::Parse(input.substr(line + 1), "fuzz");
  if (!tokenizer.ok()) {
    Require(!tokenizer.status().message().empty());
    return 0;
  }
  const auto spans = (*tokenizer)->EncodeWithOffsets(text, true);
  const auto ids = (*tokenizer)->Encode(text, true);
  Require(spans.ok() == ids.ok());
  if (ids.ok()) {
    Require(spans->size() == ids->size());
    for (std::size_t i = 0; i < ids->size(); ++i) {
      Require((*spans)[i].id == (*ids)[i]);
      Require((*spans)[i].begin_bytes <= (*spans)[i].end_bytes && (*spans)[i].end_bytes <= text.size());
    }
    CheckDecoding(**tokenizer, *ids);
  }
  std::vector<TokenId> all;  // of the vocabulary, as far as it has no holes
  for (TokenId id = 0; id < (*tokenizer)->vocab_size() && all.size() < 64; ++id) {
    if ((*tokenizer)->IdToToken(id).ok()) {
      all.push_back(id);
      (*tokenizer)->TokenBytes(id);
    }
  }
  CheckDecoding(**tokenizer, all);
  return 0;
}
