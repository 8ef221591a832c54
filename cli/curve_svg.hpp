// A line through points with axes, as an SVG file that stands alone.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace polyhead::cli {

struct Curve {
  std::string title, x_label, y_label;
  std::vector<std::pair<double, double>> points;  ///< ascending x, finite
};

/// The document. Text is escaped; colours follow the reader's light or dark scheme.
std::string curve_svg(const Curve& curve);

}  // namespace polyhead::cli
