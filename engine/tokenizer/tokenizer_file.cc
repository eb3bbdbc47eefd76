#include "engine/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;

// Where the parser is. The document is built in kDocument only.
enum class State { kDocument, kVocab, kMerges, kMergePair, kSkip };

class Reader : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(TokenizerFile* file) : file_(file) {}

  absl::Status status() const { return status_; }

  bool null() override { return Scalar(nullptr, "null"); }
  bool boolean(bool value) override { return Scalar(value, "a boolean"); }
  bool number_integer(number_integer_t value) override {
    return state_ == State::kVocab ? VocabId(value) : Scalar(value, "a number");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kVocab) {
      constexpr auto kLimit = static_cast<number_unsigned_t>(std::numeric_limits<number_integer_t>::max());
      return VocabId(static_cast<number_integer_t>(std::min(value, kLimit)));
    }
    return Scalar(value, "a number");
  }
  bool number_float(number_float_t value, const string_t&) override { return Scalar(value, "a fraction"); }
  bool string(string_t& value) override {
    if (state_ == State::kMerges) return MergeLine(value);
    if (state_ == State::kMergePair) return MergePart(value);
    return Scalar(std::move(value), "a string");
  }
  bool binary(binary_t&) override { return Fail("binary values are no JSON"); }

  bool start_object(std::size_t) override {
    if (!Enter()) return false;
    if (state_ == State::kDocument && IsModelField("vocab")) {
      state_ = State::kVocab;
      return !std::exchange(file_->has_vocab, true) || Fail("model.vocab occurs twice");
    }
    return state_ == State::kSkip ||
           (state_ == State::kDocument ? Open(Json::object()) : Unexpected("an object"));
  }
  bool key(string_t& name) override {
    if (state_ == State::kVocab) {
      return Keep(name, &file_->vocab.emplace_back().token);
    }
    if (state_ == State::kDocument) {
      if (open_.back()->contains(name)) {
        return Fail(absl::StrCat(Path(), "the key \"", absl::CHexEscape(name), "\" occurs twice"));
      }
      key_ = std::move(name);
    }
    return true;
  }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override {
    if (!Enter()) return false;
    if (state_ == State::kDocument && IsModelField("merges")) {
      state_ = State::kMerges;
      return !std::exchange(file_->has_merges, true) || Fail("model.merges occurs twice");
    }
    if (state_ == State::kDocument &&
        IsModelField("vocab")) {  // of Unigram; the model's type is refused later
      state_ = State::kSkip;
      return true;
    }
    if (state_ == State::kMerges) {
      state_ = State::kMergePair;
      pair_parts_ = 0;
      file_->merges.emplace_back();
      return true;
    }
    return state_ == State::kSkip ||
           (state_ == State::kDocument ? Open(Json::array()) : Unexpected("an array"));
  }
  bool end_array() override {
    if (state_ == State::kMergePair) {
      --depth_;
      state_ = State::kMerges;
      return pair_parts_ == 2 || FailMerge("a merge is a pair of two tokens");
    }
    return Leave();
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    absl::string_view what = error.what();
    if (const std::size_t end = what.find("] "); end != absl::string_view::npos) {
      what.remove_prefix(end + 2);
    }
    return Fail(absl::StrCat("byte ", position, ": ", absl::CHexEscape(what.substr(0, 300))));
  }

 private:
  bool Fail(absl::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(file_->name, ": ", what));
    }
    return false;
  }
  bool FailMerge(absl::string_view what) {
    return Fail(absl::StrCat("model.merges[", file_->merges.size() - 1, "]: ", what));
  }
  bool Unexpected(absl::string_view kind) {
    if (state_ == State::kVocab) {
      return Fail(absl::StrCat("model.vocab[\"", absl::CHexEscape(file_->Text(file_->vocab.back().token)),
                               "\"]: an id is expected, found ", kind));
    }
    const std::size_t index = file_->merges.size() - (state_ == State::kMergePair ? 1 : 0);
    return Fail(absl::StrCat("model.merges[", index, "]: a merge is a pair of two tokens, found ", kind));
  }
  std::string Path() const {
    return open_.size() == 1 ? "" : absl::StrCat(absl::CHexEscape(root_key_), ": ");
  }

  // model.<name> of the root object is about to be opened.
  bool IsModelField(absl::string_view name) const {
    return open_.size() == 2 && open_[0]->is_object() && open_[1]->is_object() && root_key_ == "model" &&
           key_ == name;
  }

  bool Enter() {
    return ++depth_ <= kMaxJsonDepth || Fail(absl::StrCat(Path(), "nested deeper than ", kMaxJsonDepth));
  }
  bool Leave() {
    --depth_;
    if (state_ == State::kDocument) {
      open_.pop_back();
    } else if (depth_ == 2) {  // the end of model.vocab or model.merges
      state_ = State::kDocument;
    }
    return true;
  }

  bool Open(Json value) {
    Json* place = Add(std::move(value));
    if (place == nullptr) {
      return false;
    }
    if (open_.size() == 1) {
      root_key_ = key_;
    }
    open_.push_back(place);
    return true;
  }
  bool Scalar(Json value, absl::string_view kind) {
    if (state_ == State::kSkip) return true;
    if (state_ != State::kDocument) return Unexpected(kind);
    return Add(std::move(value)) != nullptr;
  }
  Json* Add(Json value) {
    if (++values_ > kMaxJsonValues) {
      Fail(absl::StrCat(Path(), "more than ", kMaxJsonValues, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      file_->root = std::move(value);
      return &file_->root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& member = parent[key_];
    member = std::move(value);
    return &member;
  }

  bool Keep(absl::string_view text, StringSlice* slice) {
    slice->begin = file_->strings.size();
    slice->size = static_cast<std::uint32_t>(text.size());  // a file has less than 4 GiB
    file_->strings.append(text.data(), text.size());
    return true;
  }
  bool VocabId(number_integer_t id) {
    if (id < 0 || id > kMaxTokenId) {
      return Fail(absl::StrCat("model.vocab[\"", absl::CHexEscape(file_->Text(file_->vocab.back().token)),
                               "\"]: the id ", id, " is not between 0 and ", kMaxTokenId));
    }
    file_->vocab.back().id = static_cast<std::int32_t>(id);
    return true;
  }
  // The older spelling: both tokens in one string, one space between them.
  bool MergeLine(absl::string_view line) {
    if (absl::StartsWith(line, "#version")) {
      return true;
    }
    TokenizerFile::Merge& merge = file_->merges.emplace_back();
    const std::size_t space = line.find(' ');
    if (space == absl::string_view::npos || line.find(' ', space + 1) != absl::string_view::npos) {
      return FailMerge(absl::StrCat("\"", absl::CHexEscape(line.substr(0, 60)),
                                    "\" is not two tokens with one space between"));
    }
    return Keep(line.substr(0, space), &merge.left) && Keep(line.substr(space + 1), &merge.right);
  }
  bool MergePart(absl::string_view token) {
    TokenizerFile::Merge& merge = file_->merges.back();
    ++pair_parts_;
    return pair_parts_ <= 2 ? Keep(token, pair_parts_ == 1 ? &merge.left : &merge.right)
                            : FailMerge("a merge is a pair of two tokens");
  }

  TokenizerFile* file_;
  absl::Status status_;
  State state_ = State::kDocument;
  int depth_ = 0;
  std::size_t values_ = 0;
  std::vector<Json*> open_;  // containers of the document that are not closed, outermost first
  std::string key_;
  std::string root_key_;  // the root's member that is being read
  int pair_parts_ = 0;
};

}  // namespace

absl::StatusOr<TokenizerFile> ReadTokenizerFile(absl::string_view json, absl::string_view name) {
  TokenizerFile file;
  file.name = std::string(name);
  if (json.size() > kMaxTokenizerFileBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, ": ", json.size(), " bytes; the limit is ", kMaxTokenizerFileBytes));
  }
  if (const Utf8Scan scan = ScanUtf8(json); scan.valid_bytes != json.size()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": byte ", scan.valid_bytes, ": not UTF-8"));
  }
  Reader reader(&file);
  const bool complete = Json::sax_parse(json.begin(), json.end(), &reader);
  if (!reader.status().ok()) {
    return reader.status();
  }
  if (!complete || !file.root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": a JSON object is expected"));
  }
  return file;
}

}  // namespace comoe::tokenizer
