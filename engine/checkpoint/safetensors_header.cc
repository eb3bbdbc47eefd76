#include "engine/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/messages.h"
#include "nlohmann/json.hpp"

namespace comoe::checkpoint {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxDimensions = 16;

struct KnownDType {
  const char* name;
  std::uint64_t bits;
};
constexpr std::array<KnownDType, 21> kKnownDTypes = {{
    {"BOOL", 8},  {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
    {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"I16", 16},    {"U16", 16},    {"F16", 16},
    {"BF16", 16}, {"I32", 32},    {"U32", 32},        {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},  {"U64", 64},    {"F8_E4M3FNUZ", 8},
}};

// Receives the parser's events and builds entries. The format is flat: an object of objects, each either a
// tensor {dtype, shape, data_offsets} or __metadata__ {text: text}; so a state is enough and nothing nests.
// Returning false stops the parser; error_ then says why.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", absl::Utf8SafeCEscape(text)));
  }
  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("the number ", value));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    absl::string_view text = error.what();
    const std::size_t tag_end = text.find("] ");
    text.remove_prefix(tag_end == absl::string_view::npos ? 0 : tag_end + 2);
    return Fail(absl::StrCat("header is not JSON at byte ", position, ": ",
                             absl::Utf8SafeCEscape(text.substr(0, 300))));
  }

  const std::string& error() const { return error_; }
  SafetensorsHeader TakeHeader() { return std::move(header_); }

 private:
  enum class State {
    kStart,
    kRoot,
    kRootValue,
    kTensor,
    kDType,
    kShape,
    kOffsets,
    kArrayStart,
    kMetadata,
    kText,
    kEnd
  };

  bool Fail(std::string message) {
    if (error_.empty()) {
      error_ = std::move(message);
    }
    return false;
  }
  // Where the parser is, for messages.
  std::string Place() const {
    std::string place = "header";
    if (state_ != State::kStart && state_ != State::kRoot && state_ != State::kEnd) {
      absl::StrAppend(&place, ": ", state_ == State::kText || state_ == State::kMetadata ? "" : "tensor ",
                      Quoted(name_));
    }
    if (!field_.empty()) {
      absl::StrAppend(&place, ": ", Quoted(field_));
    }
    return place;
  }
  bool Unexpected(absl::string_view what) {
    return Fail(absl::StrCat(Place(), ": did not expect ", what, " there"));
  }

  State state_ = State::kStart;
  std::string error_;
  std::string name_;   // of the tensor, or __metadata__
  std::string field_;  // within it
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false, has_metadata_ = false;
  State array_ = State::kShape;  // which array follows
  HeaderEntry entry_;
  std::vector<std::uint64_t> offsets_;
  absl::flat_hash_set<std::string> names_;
  SafetensorsHeader header_;
};

bool HeaderHandler::number_unsigned(number_unsigned_t value) {
  if (state_ == State::kShape) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Fail(absl::StrCat(Place(), " has the dimension ", value));
    }
    if (entry_.shape.size() == kMaxDimensions) {
      return Fail(absl::StrCat(Place(), " has more than ", kMaxDimensions, " dimensions"));
    }
    entry_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (state_ == State::kOffsets) {
    if (offsets_.size() == 2) {
      return Fail(absl::StrCat(Place(), " has more than two numbers"));
    }
    offsets_.push_back(value);
    return true;
  }
  return Unexpected(absl::StrCat("the number ", value));
}

bool HeaderHandler::string(string_t& value) {
  if (state_ == State::kDType) {
    if (SafetensorsDTypeBits(value) == 0) {
      return Fail(absl::StrCat(Place(), " is ", Quoted(value), ", which is no dtype of this format"));
    }
    entry_.dtype = value;
    has_dtype_ = true;
    state_ = State::kTensor;
    return true;
  }
  if (state_ == State::kText) {
    header_.metadata.emplace_back(field_, value);
    state_ = State::kMetadata;
    return true;
  }
  return Unexpected(absl::StrCat("the text ", Quoted(value)));
}

bool HeaderHandler::start_object(std::size_t) {
  if (state_ == State::kStart) {
    state_ = State::kRoot;
    return true;
  }
  if (state_ == State::kRootValue) {
    if (name_ == "__metadata__") {
      if (has_metadata_) {
        return Fail("header: '__metadata__' occurs twice");
      }
      has_metadata_ = true;
      state_ = State::kMetadata;
      return true;
    }
    if (!names_.insert(name_).second) {
      return Fail(absl::StrCat("header: tensor ", Quoted(name_), " occurs twice"));
    }
    entry_ = HeaderEntry();
    entry_.name = name_;
    offsets_.clear();
    has_dtype_ = has_shape_ = has_offsets_ = false;
    state_ = State::kTensor;
    return true;
  }
  return Unexpected("an object");
}

bool HeaderHandler::key(string_t& value) {
  if (state_ == State::kRoot) {
    name_ = value;
    state_ = State::kRootValue;
    return true;
  }
  field_ = value;
  if (state_ == State::kMetadata) {
    state_ = State::kText;
    return true;
  }
  const bool repeated = (value == "dtype" && has_dtype_) || (value == "shape" && has_shape_) ||
                        (value == "data_offsets" && has_offsets_);
  if (repeated) {
    return Fail(absl::StrCat(Place(), " occurs twice"));
  }
  if (value == "dtype") {
    state_ = State::kDType;
  } else if (value == "shape" || value == "data_offsets") {
    array_ = value == "shape" ? State::kShape : State::kOffsets;
    state_ = State::kArrayStart;
  } else {
    return Fail(absl::StrCat(Place(), " is no field of this format"));
  }
  return true;
}

bool HeaderHandler::start_array(std::size_t) {
  if (state_ != State::kArrayStart) {
    return Unexpected("a list");
  }
  state_ = array_;
  return true;
}

bool HeaderHandler::end_array() {
  if (state_ == State::kOffsets) {
    if (offsets_.size() != 2) {
      return Fail(absl::StrCat(Place(), " has ", offsets_.size(), " numbers instead of two"));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    has_offsets_ = true;
  } else {
    has_shape_ = true;
  }
  state_ = State::kTensor;
  return true;
}

bool HeaderHandler::end_object() {
  field_.clear();
  if (state_ == State::kRoot) {
    state_ = State::kEnd;
    return true;
  }
  if (state_ == State::kTensor) {
    const char* missing = !has_dtype_     ? "dtype"
                          : !has_shape_   ? "shape"
                          : !has_offsets_ ? "data_offsets"
                                          : nullptr;
    if (missing != nullptr) {
      return Fail(absl::StrCat(Place(), " lacks '", missing, "'"));
    }
    header_.entries.push_back(std::move(entry_));
  }
  state_ = State::kRoot;
  return true;
}

// One entry against its own numbers and the size of the data.
absl::Status CheckEntry(const HeaderEntry& entry, std::uint64_t data_bytes, absl::string_view file) {
  const auto invalid = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", Quoted(entry.name), ": ", what));
  };
  if (entry.begin > entry.end) {
    return invalid(absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] run backwards"));
  }
  if (entry.end > data_bytes) {
    return invalid(absl::StrCat("data_offsets [", entry.begin, ", ", entry.end,
                                "] reach past the end of the data, ", data_bytes, " bytes"));
  }
  std::uint64_t bits = SafetensorsDTypeBits(entry.dtype);
  // A zero dimension makes the product zero whatever the others are, so zeros go first.
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  for (const std::int64_t dimension : entry.shape) {
    if (!empty && !base::CheckedMul(bits, static_cast<std::uint64_t>(dimension), &bits)) {
      return invalid("shape: the product of the dimensions does not fit in 64 bits");
    }
  }
  if (empty) {
    bits = 0;
  }
  if (bits % 8 != 0 || bits / 8 != entry.end - entry.begin) {
    return invalid(absl::StrCat("shape and dtype (", entry.dtype, ") need ", bits / 8,
                                " bytes, data_offsets give ", entry.end - entry.begin));
  }
  return absl::OkStatus();
}

// Sorted by begin, the entries must follow each other and fill the data.
absl::Status CheckCoverage(const std::vector<HeaderEntry>& entries, std::uint64_t data_bytes,
                           absl::string_view file) {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].begin != covered) {
      const bool overlap = entries[i].begin < covered;
      return absl::InvalidArgumentError(absl::StrCat(
          file, ": tensor ", Quoted(entries[i].name), ": data_offsets begin at ", entries[i].begin,
          overlap
              ? absl::StrCat(" and overlap tensor ", Quoted(entries[i - 1].name), ", which ends at ", covered)
              : absl::StrCat(" and leave a gap after byte ", covered)));
    }
    covered = entries[i].end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": the file has ", data_bytes, " bytes of data, data_offsets of its tensors cover ", covered));
  }
  return absl::OkStatus();
}

}  // namespace

std::uint64_t SafetensorsDTypeBits(absl::string_view dtype) {
  for (const KnownDType& known : kKnownDTypes) {
    if (dtype == known.name) {
      return known.bits;
    }
  }
  return 0;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const std::byte> bytes,
                                                         absl::string_view file) {
  const auto invalid = [file](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
  };
  if (bytes.size() < kLengthBytes) {
    return invalid(
        absl::StrCat("has ", bytes.size(), " bytes, too few for the header length of a safetensors file"));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    return invalid(absl::StrCat("header length is ", length, ", more than the ", kMaxHeaderBytes,
                                " that safetensors allows"));
  }
  if (length > bytes.size() - kLengthBytes) {
    return invalid(absl::StrCat("header length is ", length, ", but only ", bytes.size() - kLengthBytes,
                                " bytes follow: the file is truncated"));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') {
    return invalid("header does not start with '{'");
  }
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(text, text + length, &handler)) {
    return invalid(handler.error());
  }
  SafetensorsHeader header = handler.TakeHeader();
  header.data_offset = kLengthBytes + length;
  const std::uint64_t data_bytes = bytes.size() - header.data_offset;
  for (const HeaderEntry& entry : header.entries) {
    COMOE_RETURN_IF_ERROR(CheckEntry(entry, data_bytes, file));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  COMOE_RETURN_IF_ERROR(CheckCoverage(header.entries, data_bytes, file));
  return header;
}

}  // namespace comoe::checkpoint
