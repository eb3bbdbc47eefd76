#include "engine/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/regex_syntax.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

constexpr std::uint32_t kOptions =
    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C;
constexpr std::size_t kMaxPatternBytes = 64u << 10;  // patterns in use have a few hundred bytes
constexpr std::size_t kFirstJitStackBytes = 32u << 10;
// Between two looks at the clock the engine may read this many bytes: well under a second.
constexpr std::size_t kBytesBetweenClockReads = std::size_t{1} << 27;
constexpr std::size_t kMaxStartsPerCall = 4096;
constexpr int kMatchesBetweenClockReads = 64;

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  const int length = pcre2_get_error_message(code, buffer.data(), buffer.size());
  return length < 0 ? absl::StrCat("error ", code) : std::string(buffer.begin(), buffer.begin() + length);
}

PCRE2_SPTR Units(absl::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContextPtr = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using JitStackPtr = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

}  // namespace

struct Regex::Compiled {
  CodePtr code;
  bool has_jit = false;
};

struct Regex::Matcher::State {
  const Compiled* compiled = nullptr;
  RegexLimits limits;
  MatchDataPtr data;
  MatchContextPtr context;
  JitStackPtr jit_stack;  // only after the small built-in one has overflowed

  int Match(absl::string_view text, std::size_t start, std::size_t last_start);
};

Regex::Regex(std::unique_ptr<Compiled> compiled, RegexLimits limits)
    : compiled_(std::move(compiled)), limits_(limits) {}
Regex::~Regex() = default;

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(absl::string_view pattern, RegexLimits limits) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression of ", pattern.size(), " bytes; the limit is ", kMaxPatternBytes));
  }
  COMOE_ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  CompileContextPtr context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) {
    return absl::ResourceExhaustedError("regular expression: no memory to compile it");
  }
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code.reset(
      pcre2_compile(Units(translated), translated.size(), kOptions, &error, &offset, context.get()));
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression: ", ErrorText(error)));
  }
  compiled->has_jit = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return std::unique_ptr<Regex>(new Regex(std::move(compiled), limits));
}

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>()) {
  state_->compiled = regex.compiled_.get();
  state_->limits = regex.limits_;
  state_->data.reset(pcre2_match_data_create(1, nullptr));
  state_->context.reset(pcre2_match_context_create(nullptr));
  if (state_->context != nullptr) {
    pcre2_set_match_limit(state_->context.get(), regex.limits_.match_limit);
    pcre2_set_heap_limit(state_->context.get(), regex.limits_.stack_bytes / 1024);
  }
}
Regex::Matcher::~Matcher() = default;

int Regex::Matcher::State::Match(absl::string_view text, std::size_t start, std::size_t last_start) {
  pcre2_set_offset_limit(context.get(), last_start >= text.size() ? PCRE2_UNSET : last_start);
  const auto match = [&] {
    return pcre2_match(compiled->code.get(), Units(text), text.size(), start, PCRE2_NO_UTF_CHECK, data.get(),
                       context.get());
  };
  int result = match();
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && jit_stack == nullptr) {
    jit_stack.reset(pcre2_jit_stack_create(kFirstJitStackBytes, limits.stack_bytes, nullptr));
    if (jit_stack != nullptr) {
      pcre2_jit_stack_assign(context.get(), nullptr, jit_stack.get());
      result = match();
    }
  }
  return result;
}

absl::Status Regex::Matcher::FindAll(absl::string_view text, std::vector<RegexMatch>* matches) {
  matches->clear();
  if (state_->data == nullptr || state_->context == nullptr) {
    return absl::ResourceExhaustedError("regular expression: no memory to match");
  }
  using Clock = std::chrono::steady_clock;
  const absl::Duration allowed =
      state_->limits.base_time +
      state_->limits.time_per_mebibyte * (static_cast<double>(text.size()) / (1 << 20));
  const Clock::time_point begin = Clock::now();
  const auto check_clock = [&] {
    return absl::FromChrono(Clock::now() - begin) <= allowed
               ? absl::OkStatus()
               : absl::ResourceExhaustedError(absl::StrCat("regular expression: gave up on a text of ",
                                                           text.size(), " bytes after ",
                                                           absl::FormatDuration(allowed)));
  };

  std::size_t start = 0;
  bool has_previous = false;
  while (start <= text.size()) {
    const std::size_t starts =
        std::clamp<std::size_t>(kBytesBetweenClockReads / (text.size() - start + 1), 1, kMaxStartsPerCall);
    const std::size_t last_start = start + starts;
    const int result = state_->Match(text, start, last_start);
    if (result == PCRE2_ERROR_NOMATCH) {
      if (last_start >= text.size()) {
        break;
      }
      COMOE_RETURN_IF_ERROR(check_clock());
      start = last_start + 1;
      while (start < text.size() && IsUtf8Continuation(text[start])) {
        ++start;
      }
      continue;
    }
    if (result < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("regular expression: gave up on a text of ",
                                                       text.size(), " bytes: ", ErrorText(result)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data.get());
    const RegexMatch match{ends[0], ends[1]};
    if (match.begin == match.end && has_previous && matches->back().end == match.end) {
      start = match.end >= text.size() ? text.size() + 1 : match.end + Utf8Length(text[match.end]);
      continue;
    }
    matches->push_back(match);
    has_previous = true;
    start = match.end;
    if (matches->size() % kMatchesBetweenClockReads == 0) {
      COMOE_RETURN_IF_ERROR(check_clock());
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::tokenizer
