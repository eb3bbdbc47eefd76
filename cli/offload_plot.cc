#include "cli/offload_plot.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace comoe::cli {
namespace {

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "''"}, {"\n", " "}}), "'");
}

std::string Script(const std::string& path, const std::vector<Plot>& plots) {
  const bool png = absl::EndsWith(path, ".png");
  std::string script = absl::StrCat(
      "set terminal ", png ? "pngcairo" : "svg", " size 900,", 420 * plots.size(), " noenhanced\nset output ",
      Quoted(path), "\nset grid\nset key outside\n", "set multiplot layout ", plots.size(), ",1\n");
  for (const Plot& plot : plots) {
    absl::StrAppend(&script, "set title ", Quoted(plot.title), "\nset xlabel ", Quoted(plot.x_label),
                    "\nset ylabel ", Quoted(plot.y_label), "\nset yrange [0:*]\n",
                    plot.log_x ? "set logscale x 2\n" : "unset logscale x\n");
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      absl::StrAppend(&script, "$series", i, " << EOD\n");
      for (const auto& [x, y] : plot.series[i].points) {
        absl::StrAppend(&script, x, " ", y, "\n");
      }
      absl::StrAppend(&script, "EOD\n");
    }
    absl::StrAppend(&script, "plot ");
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      absl::StrAppend(&script, i > 0 ? ", " : "", "$series", i, " with linespoints lw 2 title ",
                      Quoted(plot.series[i].name));
    }
    absl::StrAppend(&script, "\n");
  }
  return absl::StrCat(script, "unset multiplot\n");
}

// Its exit status, or -1 when there is no such program.
int RunGnuplot(const std::string& script) {
  std::string name = "gnuplot";
  std::string argument = script;
  char* const argv[] = {name.data(), argument.data(), nullptr};
  pid_t child = 0;
  if (::posix_spawnp(&child, name.c_str(), nullptr, nullptr, argv, ::environ) != 0) {
    return -1;
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

absl::Status WritePlots(const std::string& path, const std::vector<Plot>& plots) {
  const std::string script_path = absl::StrCat(path, ".gp");
  {
    std::ofstream file(script_path, std::ios::trunc);
    file << Script(path, plots);
    if (!file.flush()) {
      return absl::UnavailableError(absl::StrCat("cannot write ", script_path, ": ", std::strerror(errno)));
    }
  }
  const int status = RunGnuplot(script_path);
  if (status == -1 || status == 127) {
    return absl::NotFoundError(
        absl::StrCat("gnuplot is not installed: ", script_path, " draws ", path, " where it is"));
  }
  return status == 0 ? absl::OkStatus()
                     : absl::InternalError(absl::StrCat("gnuplot ", script_path, " ended with ", status));
}

}  // namespace comoe::cli
