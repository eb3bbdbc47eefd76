#include "cli/offload_plot.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/output_path.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "''"}, {"\n", " "}}), "'");
}

constexpr int kPlotWidth = 900;
constexpr int kPlotHeight = 400;

// Distinct in print and for most who see colours differently.
constexpr const char* kColours[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                    "#66ccee", "#aa3377", "#777777"};
constexpr std::size_t kNumColours = sizeof(kColours) / sizeof(kColours[0]);

std::string Colour(std::size_t series) {
  return absl::StrCat(" lc rgb '", kColours[series % kNumColours], "'");
}

// A range around values that are all the same, which gnuplot would warn of; "" where they are not.
std::string RangeAround(double low, double high, bool from_0, bool log) {
  if (!(low <= high) || (from_0 ? high > 0.0 : high - low > 1e-6 * std::max(std::abs(low), std::abs(high)))) {
    return "";
  }
  if (log && low > 0.0) {
    return absl::StrCat("[", 0.5 * low, ":", 2.0 * high, "]");
  }
  const double margin = high == 0.0 ? 1.0 : 0.1 * std::abs(high);
  return absl::StrCat("[", from_0 ? 0.0 : low - margin, ":", high + margin, "]");
}

struct Bounds {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;

  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};
// Of both axes.
std::pair<Bounds, Bounds> BoundsOf(const Plot& plot) {
  std::pair<Bounds, Bounds> bounds;
  for (const PlotSeries& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      bounds.first.Add(x);
      bounds.second.Add(y);
    }
  }
  return bounds;
}

std::string Axes(const Plot& plot) {
  const auto [of_x, of_y] = BoundsOf(plot);
  const std::string one_height = RangeAround(of_y.low, of_y.high, plot.y_from_0, false);
  std::string script =
      absl::StrCat("unset label\nunset arrow\nset title ", Quoted(plot.title), "\nset xlabel ",
                   Quoted(plot.x_label), "\nset ylabel ", Quoted(plot.y_label), "\n", "set yrange ",
                   !one_height.empty() ? one_height
                   : plot.y_from_0     ? "[0:*]"
                                       : "[*:*]",
                   "\n", plot.log_x ? "set logscale x 2\n" : "unset logscale x\n");
  if (plot.level.has_value()) {
    absl::StrAppend(&script, "set arrow from graph 0, first ", *plot.level, " to graph 1, first ",
                    *plot.level, " nohead dt 2 lc rgb '#555555'\n");
  }
  // Words stand on that side of their line where there is room.
  const double middle = 0.5 * (of_x.low + of_x.high);
  for (std::size_t i = 0; i < plot.marks.size(); ++i) {
    const auto& [x, word] = plot.marks[i];
    absl::StrAppend(&script, "set arrow from first ", x, ", graph 0 to first ", x,
                    ", graph 1 nohead dt 3 lc rgb '#555555'\nset label ", Quoted(word), " at first ", x,
                    ", graph ", 0.95 - 0.08 * static_cast<double>(i), x > middle ? " right" : " left",
                    " offset ", x > middle ? "-0.5" : "0.5", ",0 font ',10'\n");
  }
  return script;
}

std::string Lines(const Plot& plot) {
  const Bounds of_x = BoundsOf(plot).first;
  const std::string one_place = RangeAround(of_x.low, of_x.high, false, plot.log_x);
  std::string script =
      absl::StrCat("set xrange ", one_place.empty() ? "[*:*]" : one_place, "\nset xtics auto\nplot ");
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    absl::StrAppend(&script, i > 0 ? ", " : "", "$series", i, " with linespoints lw 2 pt 7 ps 0.6", Colour(i),
                    " title ", Quoted(plot.series[i].name));
  }
  return absl::StrCat(script, "\n");
}

// Boxes side by side, each with its height above it.
std::string Bars(const Plot& plot) {
  const double width = 0.8 / static_cast<double>(plot.series.size());
  std::string script =
      absl::StrCat("set xrange [-0.6:", static_cast<double>(plot.clusters.size()) - 0.4,
                   "]\nset style fill solid 0.9 noborder\nset offsets 0, 0, graph 0.08, 0\nset xtics (");
  for (std::size_t i = 0; i < plot.clusters.size(); ++i) {
    absl::StrAppend(&script, i > 0 ? ", " : "", Quoted(plot.clusters[i]), " ", i);
  }
  absl::StrAppend(&script, ")\nplot ");
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const double shift = width * (static_cast<double>(i) - 0.5 * static_cast<double>(plot.series.size() - 1));
    absl::StrAppend(&script, i > 0 ? ", " : "", "$series", i, " using ($1 + ", shift, "):2:(", 0.95 * width,
                    ") with boxes", Colour(i), " title ", Quoted(plot.series[i].name), ", $series", i,
                    " using ($1 + ", shift,
                    "):2:(sprintf('%.2f', $2)) with labels offset 0,0.6 font ',8' notitle");
  }
  return absl::StrCat(script, "\nunset offsets\n");
}

std::string Script(const std::string& path, const std::vector<Plot>& plots) {
  const bool png = absl::EndsWith(path, ".png");
  std::string script = absl::StrCat(
      "set terminal ", png ? "pngcairo" : "svg", " size ", kPlotWidth, ",", kPlotHeight * plots.size(),
      " noenhanced font 'sans,11' background rgb 'white'\nset output ", Quoted(path),
      "\nset grid ytics lc rgb '#dddddd'\nset key below\n", "set multiplot layout ", plots.size(), ",1\n");
  for (const Plot& plot : plots) {
    absl::StrAppend(&script, Axes(plot));
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      absl::StrAppend(&script, "$series", i, " << EOD\n");
      for (const auto& [x, y] : plot.series[i].points) {
        absl::StrAppend(&script, x, " ", y, "\n");
      }
      absl::StrAppend(&script, "EOD\n");
    }
    absl::StrAppend(&script, plot.clusters.empty() ? Lines(plot) : Bars(plot));
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

bool HasGnuplot() {
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string program = absl::StrCat(folder.empty() ? "." : folder, "/gnuplot");
    if (::access(program.c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::Status CheckPlotPath(const std::string& path) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  if (!absl::EndsWith(path, ".svg") && !absl::EndsWith(path, ".png")) {
    return absl::InvalidArgumentError(absl::StrCat("--plot ", path, ": name it FILE.svg or FILE.png"));
  }
  COMOE_RETURN_IF_ERROR(CheckOutputPath("--plot", path));
  if (!HasGnuplot()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--plot ", path,
                     " needs gnuplot, which is not on the PATH: install it (apt-get install gnuplot-nox), "
                     "or leave --plot out"));
  }
  return absl::OkStatus();
}

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
  if (status != 0) {
    return absl::InternalError(absl::StrCat("gnuplot ", script_path, " ended with ", status));
  }
  ::unlink(script_path.c_str());
  return absl::OkStatus();
}

}  // namespace comoe::cli
