#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/bytes.h"

namespace comoe::cli {
namespace {

constexpr absl::Duration kFirstShown = absl::Milliseconds(400);
constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr absl::Duration kPrintAgain = absl::Seconds(5);  // where lines pile up, in a log

std::string Percent(std::uint64_t done, std::uint64_t total) {
  return total == 0 ? "" : absl::StrCat(", ", done * 100 / total, " %");
}

}  // namespace

Progress::Progress(std::string what, bool quiet)
    : what_(std::move(what)),
      quiet_(quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(absl::Now()),
      last_shown_(start_ + kFirstShown - (terminal_ ? kRedraw : kPrintAgain)) {}

Progress::~Progress() {
  if (line_open_) {
    std::fputs("\n", stderr);
  }
}

void Progress::Show(const std::string& text, bool last) {
  const absl::Time now = absl::Now();
  const absl::Duration wait = terminal_ ? kRedraw : kPrintAgain;
  if (quiet_ || now - start_ < kFirstShown || (!last && now - last_shown_ < wait)) {
    return;
  }
  last_shown_ = now;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s %s", what_.c_str(), text.c_str());
    line_open_ = true;
  } else {
    std::fprintf(stderr, "%s %s\n", what_.c_str(), text.c_str());
  }
  std::fflush(stderr);
}

void Progress::Update(std::uint64_t done, std::uint64_t total, absl::string_view unit) {
  Show(absl::StrCat(done, " of ", total, " ", unit, Percent(done, total)), done >= total);
}

void Progress::UpdateBytes(std::uint64_t done, std::uint64_t total) {
  Show(absl::StrCat(base::FormatBytes(done), " of ", base::FormatBytes(total), Percent(done, total)),
       done >= total);
}

}  // namespace comoe::cli
