// Plots of measurements, drawn by gnuplot where it is installed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace comoe::cli {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false;
  std::vector<PlotSeries> series;
  // Not empty: bars, a cluster for each of these names; a point's x is the number of its cluster.
  std::vector<std::string> clusters = {};
  bool y_from_0 = true;                        // false: the axis spans what there is
  std::optional<double> level = std::nullopt;  // a thin line across, what others are compared with
  std::vector<std::pair<double, std::string>> marks = {};  // of the x axis: upright lines with a word each
};

// Whether --plot can be drawn to `path`, or is empty: known before anything is measured. FAILED_PRECONDITION:
// there is no gnuplot.
absl::Status CheckPlotPath(const std::string& path);

// Draws FILE.svg or FILE.png, several plots one above the other. Where gnuplot fails or is gone, an error
// names the script that is left beside it.
absl::Status WritePlots(const std::string& path, const std::vector<Plot>& plots);

}  // namespace comoe::cli
