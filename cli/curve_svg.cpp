#include "cli/curve_svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/escape.hpp"

namespace polyhead::cli {
namespace {

constexpr double kWidth = 720, kHeight = 420;
constexpr double kLeft = 72, kRight = 24, kTop = 48, kBottom = 56;
constexpr int kTicks = 5;

template <class... Numbers>
std::string format(const char* pattern, Numbers... numbers) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, numbers...);
  return text;
}

/// 1, 2 or 5 times a power of ten, so that about kTicks of them fill the span.
double step_of(double span) {
  const double raw = span / kTicks, power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

/// An axis: where a value lies between two pixels, and round values along it.
struct Axis {
  double low, high, step, from, to;

  Axis(double least, double most, double first_pixel, double last_pixel)
      : from(first_pixel), to(last_pixel) {
    if (!(most > least)) most = least + 1;
    step = step_of(most - least);
    low = std::floor(least / step) * step;
    high = std::ceil(most / step) * step;
  }
  double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
  int ticks() const { return static_cast<int>(std::lround((high - low) / step)) + 1; }
};

}  // namespace

std::string curve_svg(const Curve& curve) {
  double x_least = 0, x_most = 1, y_least = 0, y_most = 1;
  if (!curve.points.empty()) {
    const auto by_y = [](const auto& a, const auto& b) { return a.second < b.second; };
    x_least = curve.points.front().first;
    x_most = curve.points.back().first;
    y_least = std::min_element(curve.points.begin(), curve.points.end(), by_y)->second;
    y_most = std::max_element(curve.points.begin(), curve.points.end(), by_y)->second;
  }
  const Axis x(x_least, x_most, kLeft, kWidth - kRight);
  const Axis y(y_least, y_most, kHeight - kBottom, kTop);
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" role=\"img\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"13\">\n",
      kWidth, kHeight);
  svg += "<title>" + text_for_markup(curve.title) + "</title>\n";
  svg +=
      "<style>svg{background:#fff;color:#1a1a1a}@media(prefers-color-scheme:dark)"
      "{svg{background:#14161a;color:#e8e8e8}}text{fill:currentColor}</style>\n";
  svg += format("<text x=\"%g\" y=\"26\" font-size=\"16\">", kLeft) + text_for_markup(curve.title) +
         "</text>\n<g stroke=\"currentColor\" stroke-opacity=\"0.2\">\n";
  for (int i = 0; i < y.ticks(); ++i) {
    const double at = y.at(y.low + i * y.step);
    svg += format("<line x1=\"%g\" x2=\"%g\" y1=\"%.2f\" y2=\"%.2f\"/>\n", kLeft, kWidth - kRight,
                  at, at);
  }
  svg += "</g>\n<g text-anchor=\"end\">\n";
  for (int i = 0; i < y.ticks(); ++i) {
    const double value = y.low + i * y.step;
    svg += format("<text x=\"%g\" y=\"%.2f\">%g</text>\n", kLeft - 8, y.at(value) + 4, value);
  }
  svg += "</g>\n<g text-anchor=\"middle\">\n";
  for (int i = 0; i < x.ticks(); ++i) {
    const double value = x.low + i * x.step;
    svg +=
        format("<text x=\"%.2f\" y=\"%g\">%g</text>\n", x.at(value), kHeight - kBottom + 20, value);
  }
  svg += format("<text x=\"%g\" y=\"%g\">", (kLeft + kWidth - kRight) / 2, kHeight - 12) +
         text_for_markup(curve.x_label) + "</text>\n";
  svg +=
      format("<text transform=\"translate(18 %g) rotate(-90)\">", (kTop + kHeight - kBottom) / 2) +
      text_for_markup(curve.y_label) + "</text>\n</g>\n";
  svg += "<polyline fill=\"none\" stroke=\"#2f6fde\" stroke-width=\"2\" points=\"";
  for (const auto& [px, py] : curve.points) svg += format("%.2f,%.2f ", x.at(px), y.at(py));
  svg += "\"/>\n<g fill=\"#2f6fde\">\n";
  for (const auto& [px, py] : curve.points) {
    svg += format("<circle cx=\"%.2f\" cy=\"%.2f\" r=\"3\"><title>%g: %.4f</title></circle>\n",
                  x.at(px), y.at(py), px, py);
  }
  return svg + "</g>\n</svg>\n";
}

}  // namespace polyhead::cli
