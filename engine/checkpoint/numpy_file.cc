#include "engine/checkpoint/numpy_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/bytes.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/messages.h"
#include "zip.h"

namespace comoe::checkpoint {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kMaxDimensions = 16;
constexpr std::int64_t kMaxArrays = 1024;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

// Reads NumPy's header, a Python dict literal of three known keys: {'descr': '<u2', 'fortran_order': False,
// 'shape': (96, 512), }.
class HeaderParser {
 public:
  HeaderParser(absl::string_view text, absl::string_view file) : rest_(text), file_(file) {}

  absl::Status Parse(NumpyArray* array) {
    bool has_descr = false, has_order = false, has_shape = false;
    if (!Take('{')) {
      return Invalid("header is no dict");
    }
    while (!Take('}')) {
      std::string key;
      if (!TakeText(&key) || !Take(':')) {
        return Invalid("header: a quoted key and a colon are needed");
      }
      if (key == "descr" && !has_descr) {
        has_descr = true;
        COMOE_RETURN_IF_ERROR(ParseDescr(array));
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        COMOE_RETURN_IF_ERROR(ParseOrder());
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        COMOE_RETURN_IF_ERROR(ParseShape(array));
      } else {
        return Invalid(absl::StrCat("header: key ", Quoted(key), " is unknown or occurs twice"));
      }
      if (!Take(',') && !absl::StartsWith(rest_, "}")) {
        return Invalid(absl::StrCat("header: a comma is needed after ", Quoted(key)));
      }
    }
    if (!has_descr || !has_order || !has_shape) {
      return Invalid("header lacks 'descr', 'fortran_order' or 'shape'");
    }
    if (!absl::StripAsciiWhitespace(rest_).empty()) {
      return Invalid("header goes on after its dict");
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Invalid(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", what));
  }
  void SkipSpaces() {
    while (!rest_.empty() && rest_[0] == ' ') {
      rest_.remove_prefix(1);
    }
  }
  // Takes one character, and the spaces after it, if it is next.
  bool Take(char c) {
    SkipSpaces();
    if (rest_.empty() || rest_[0] != c) {
      return false;
    }
    rest_.remove_prefix(1);
    SkipSpaces();
    return true;
  }
  bool TakeText(std::string* text) {
    SkipSpaces();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) {
      return false;
    }
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) {
      return false;
    }
    *text = std::string(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return true;
  }

  absl::Status ParseDescr(NumpyArray* array) {
    std::string descr;
    if (!TakeText(&descr)) {
      return Invalid("header: descr is no text (structured dtypes are not supported)");
    }
    constexpr std::pair<const char*, NumpyDType> kKnown[] = {{"|u1", NumpyDType::kU8},
                                                             {"<u2", NumpyDType::kU16},
                                                             {"<i4", NumpyDType::kI32},
                                                             {"<i8", NumpyDType::kI64},
                                                             {"<f4", NumpyDType::kF32}};
    for (const auto& [name, dtype] : kKnown) {
      if (descr == name) {
        array->dtype = dtype;
        return absl::OkStatus();
      }
    }
    return absl::UnimplementedError(absl::StrCat(file_, ": header: descr is ", Quoted(descr),
                                                 "; supported are |u1, <u2, <i4, <i8 and <f4"));
  }

  absl::Status ParseOrder() {
    if (absl::ConsumePrefix(&rest_, "False")) {
      return absl::OkStatus();
    }
    if (absl::ConsumePrefix(&rest_, "True")) {
      return absl::UnimplementedError(
          absl::StrCat(file_, ": header: fortran_order is True; supported is C order"));
    }
    return Invalid("header: fortran_order is neither True nor False");
  }

  absl::Status ParseShape(NumpyArray* array) {
    if (!Take('(')) {
      return Invalid("header: shape is no tuple");
    }
    while (!Take(')')) {
      std::size_t digits = 0;
      while (digits < rest_.size() && absl::ascii_isdigit(static_cast<unsigned char>(rest_[digits]))) {
        ++digits;
      }
      std::int64_t dimension = 0;
      if (digits == 0 || !absl::SimpleAtoi(rest_.substr(0, digits), &dimension)) {
        return Invalid("header: shape holds something that is no size");
      }
      if (array->shape.size() == kMaxDimensions) {
        return Invalid(absl::StrCat("header: shape has more than ", kMaxDimensions, " dimensions"));
      }
      array->shape.push_back(dimension);
      rest_.remove_prefix(digits);
      if (!Take(',') && !absl::StartsWith(rest_, ")")) {
        return Invalid("header: shape lacks a comma");
      }
    }
    return absl::OkStatus();
  }

  absl::string_view rest_;
  absl::string_view file_;
};

// Where the header text lies: version 1 has 2 bytes of length, 2 and 3 have 4.
absl::Status LocateHeader(absl::Span<const std::byte> bytes, absl::string_view file, std::size_t* begin,
                          std::size_t* length) {
  const auto at = [bytes](std::size_t i) { return static_cast<std::size_t>(bytes[i]); };
  if (bytes.size() < 10 || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": does not start like a NumPy array"));
  }
  const std::size_t version = at(6);
  if (version < 1 || version > 3) {
    return absl::UnimplementedError(
        absl::StrCat(file, ": version is ", version, "; supported are 1, 2 and 3"));
  }
  *begin = version == 1 ? 10 : 12;
  if (bytes.size() < *begin) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": header length is cut off"));
  }
  *length = at(8) | at(9) << 8;
  if (version > 1) {
    *length |= at(10) << 16 | at(11) << 24;
  }
  if (*length > bytes.size() - *begin) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": header length is ", *length, ", but only ",
                                                   bytes.size() - *begin, " bytes follow"));
  }
  return absl::OkStatus();
}

struct ZipCloser {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
struct ZipFileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

absl::StatusOr<std::unique_ptr<zip_t, ZipCloser>> OpenZip(const base::MappedFile& file) {
  zip_error_t error;
  zip_error_init(&error);
  const auto fail = [&](absl::string_view what) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", what, ": ", zip_error_strerror(&error)));
    zip_error_fini(&error);
    return status;
  };
  zip_source_t* source = zip_source_buffer_create(file.bytes().data(), file.bytes().size(), 0, &error);
  if (source == nullptr) {
    return fail("cannot be read");
  }
  zip_t* archive = zip_open_from_source(source, ZIP_RDONLY, &error);
  if (archive == nullptr) {
    zip_source_free(source);
    return fail("is no zip archive");
  }
  zip_error_fini(&error);
  return std::unique_ptr<zip_t, ZipCloser>(archive);
}

// Unpacks one entry, growing with what really comes out, never beyond `limit`.
absl::StatusOr<std::vector<std::byte>> ReadEntry(zip_t* archive, std::uint64_t entry, absl::string_view place,
                                                 std::uint64_t limit) {
  const std::unique_ptr<zip_file_t, ZipFileCloser> file(zip_fopen_index(archive, entry, 0));
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": cannot be unpacked: ", zip_strerror(archive)));
  }
  std::vector<std::byte> bytes;
  while (true) {
    const std::size_t done = bytes.size();
    if (done > limit) {
      return absl::ResourceExhaustedError(
          absl::StrCat(place, ": unpacks to more than the ", base::FormatBytes(limit), " left for it"));
    }
    bytes.resize(done + kReadBytes);
    const zip_int64_t got = zip_fread(file.get(), bytes.data() + done, kReadBytes);
    if (got < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": cannot be unpacked: ", zip_error_strerror(zip_file_get_error(file.get()))));
    }
    bytes.resize(done + static_cast<std::size_t>(got));
    if (got == 0) {
      return bytes;
    }
  }
}

}  // namespace

std::int64_t NumpyArray::IntegerAt(std::int64_t i) const {
  const std::byte* element = bytes.data() + static_cast<std::size_t>(i) * NumpyDTypeBytes(dtype);
  const auto load = [element](auto value) {
    std::memcpy(&value, element, sizeof(value));
    return static_cast<std::int64_t>(value);
  };
  switch (dtype) {
    case NumpyDType::kU8:
      return load(std::uint8_t{0});
    case NumpyDType::kU16:
      return load(std::uint16_t{0});
    case NumpyDType::kI32:
      return load(std::int32_t{0});
    case NumpyDType::kI64:
      return load(std::int64_t{0});
    case NumpyDType::kF32:
      break;
  }
  return 0;
}

absl::StatusOr<NumpyArray> ParseNpy(absl::Span<const std::byte> bytes, absl::string_view name) {
  std::size_t begin = 0;
  std::size_t length = 0;
  COMOE_RETURN_IF_ERROR(LocateHeader(bytes, name, &begin, &length));
  NumpyArray array;
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()) + begin, length);
  COMOE_RETURN_IF_ERROR(HeaderParser(text, name).Parse(&array));
  const absl::Span<const std::byte> data = bytes.subspan(begin + length);
  std::uint64_t need = NumpyDTypeBytes(array.dtype);
  const bool empty = std::find(array.shape.begin(), array.shape.end(), 0) != array.shape.end();
  for (const std::int64_t dimension : array.shape) {
    if (!empty && !base::CheckedMul(need, static_cast<std::uint64_t>(dimension), &need)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": shape: the product of the sizes does not fit in 64 bits"));
    }
  }
  need = empty ? 0 : need;
  if (need != data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": shape and descr need ", need, " bytes, ", data.size(), " follow the header"));
  }
  array.bytes.assign(data.begin(), data.end());
  return array;
}

absl::StatusOr<absl::btree_map<std::string, NumpyArray>> ReadNpz(const std::string& path,
                                                                 std::uint64_t limit_bytes) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<base::MappedFile> file, base::MappedFile::Open(path));
  using Archive = std::unique_ptr<zip_t, ZipCloser>;
  COMOE_ASSIGN_OR_RETURN(const Archive archive, OpenZip(*file));
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  if (count < 1 || count > kMaxArrays) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds ", count, " arrays; between 1 and ", kMaxArrays, " are accepted"));
  }
  absl::btree_map<std::string, NumpyArray> arrays;
  std::uint64_t left = limit_bytes;
  for (zip_int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const char* entry = zip_get_name(archive.get(), index, 0);
    const std::string name = entry == nullptr ? "" : entry;
    if (!absl::EndsWith(name, ".npy")) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": entry ", Quoted(name), " is no .npy array"));
    }
    const std::string place = absl::StrCat(path, ": array ", Quoted(name));
    COMOE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ReadEntry(archive.get(), index, place, left));
    left -= std::min<std::uint64_t>(left, bytes.size());
    COMOE_ASSIGN_OR_RETURN(NumpyArray array, ParseNpy(bytes, place));
    if (!arrays.emplace(name.substr(0, name.size() - 4), std::move(array)).second) {
      return absl::InvalidArgumentError(absl::StrCat(place, " occurs twice"));
    }
  }
  return arrays;
}

}  // namespace comoe::checkpoint
