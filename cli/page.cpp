#include "cli/page.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/escape.hpp"
#include "cli/page_files.hpp"
#include "models/fingerprint.hpp"
#include "models/formats/output_file.hpp"

namespace polyhead::cli {
namespace {

using nlohmann::ordered_json;
using Sink = std::function<void(std::string_view)>;

constexpr int kVersion = 1;  // of the data; explorer/source.js reads this one

void write_base64(std::string_view bytes, const Sink& sink) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t left = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < left ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += i <= left ? kLetters[bits >> (18 - 6 * i) & 63] : '=';
    }
    if (text.size() >= 1 << 16) {
      sink(text);
      text.clear();
    }
  }
  sink(text);
}

void write_block(const std::string& name, std::string_view bytes, const Sink& sink) {
  sink("<script type=\"text/plain\" id=\"" + name + "\">");
  write_base64(bytes, sink);
  sink("</script>\n");
}

/// A string, or {"bytes": "D9"} where the bytes alone are no text.
ordered_json token_json(const std::string& bytes) {
  ordered_json text(bytes);
  try {
    (void)text.dump();
    return text;
  } catch (const ordered_json::type_error&) {
    std::string hex;
    for (const char c : bytes) {
      static constexpr char kDigits[] = "0123456789ABCDEF";
      const auto byte = static_cast<unsigned char>(c);
      hex += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
    return {{"bytes", hex}};
  }
}

ordered_json tokens_json(const std::vector<std::string>& tokens) {
  ordered_json list = ordered_json::array();
  for (const std::string& token : tokens) list.push_back(token_json(token));
  return list;
}

/// Six decimals; null where not measurable.
ordered_json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::round(value * 1e6) / 1e6;
}

using Figure = std::function<double(const HeadMeasures&)>;

ordered_json column(const PageData& page, const Figure& figure) {
  ordered_json values = ordered_json::array();
  for (const PageLayer& layer : page.layers) {
    for (const PageHead& head : layer.heads) {
      values.push_back(head.known ? number(figure(head.measures)) : ordered_json(nullptr));
    }
  }
  return values;
}

ordered_json target_columns(const PageData& page, double TargetMass::*figure) {
  ordered_json columns;
  for (int t = 0; t < kHeadTargets; ++t) {
    const auto target = static_cast<HeadTarget>(t);
    columns[head_target_name(target)] =
        column(page, [&](const HeadMeasures& m) { return m[target].*figure; });
  }
  return columns;
}

ordered_json measures_json(const PageData& page) {
  ordered_json all = target_columns(page, &TargetMass::mean);
  all["entropy"] = column(page, [](const HeadMeasures& m) { return m.mean_entropy; });
  all["first"] = column(page, [](const HeadMeasures& m) { return m.first; });
  all["spread"] = column(page, [](const HeadMeasures& m) { return m.spread; });
  all["distance"] = column(page, [](const HeadMeasures& m) { return m.mean_distance; });
  all["largest"] = column(page, [](const HeadMeasures& m) { return m.mean_largest; });
  return all;
}

void add_layers(const PageData& page, ordered_json& meta) {
  std::string forms;
  ordered_json roles = ordered_json::array(), sizes = ordered_json::array(),
               windows = ordered_json::array(), scales = ordered_json::array(),
               soft_caps = ordered_json::array(), steps = ordered_json::array();
  for (const PageLayer& layer : page.layers) {
    ordered_json bytes = ordered_json::array();
    for (const PageHead& head : layer.heads) {
      forms += head.known ? "fsm"[head.form] : 'n';
      roles.push_back(head.known ? head_role_name(head.measures.role) : "unknown");
      bytes.push_back(head.bytes.size());
    }
    sizes.push_back(std::move(bytes));
    windows.push_back(layer.window);
    scales.push_back(layer.scale);
    soft_caps.push_back(layer.soft_cap);
    steps.push_back(layer.steps_heads);
  }
  meta["windows"] = std::move(windows);
  meta["scale"] = std::move(scales);
  meta["soft_cap"] = std::move(soft_caps);
  meta["roles"] = std::move(roles);
  meta["forms"] = forms;
  meta["sizes"] = std::move(sizes);
  meta["steps"] = std::move(steps);
}

ordered_json meta_json(const PageData& page) {
  ordered_json meta;
  meta["version"] = kVersion;
  meta["file"] = "";
  meta["model"] = page.model;
  meta["precision"] = page.precision;
  meta["program"] = page.program;
  meta["mask"] = page.causal ? "causal" : "none";
  meta["nq"] = page.q_len;
  meta["nk"] = page.kv_len;
  meta["layers"] = page.layers.size();
  meta["heads"] = page.q_heads;
  meta["kv"] = page.kv_heads;
  meta["dim"] = page.head_dim;
  meta["value_dim"] = page.value_dim;
  meta["tokens"] = tokens_json(page.tokens);
  meta["key_tokens"] =
      page.key_tokens.empty() ? ordered_json(nullptr) : tokens_json(page.key_tokens);
  meta["measures"] = measures_json(page);
  meta["chance"] = target_columns(page, &TargetMass::mean_chance);
  meta["share"] = target_columns(page, &TargetMass::share);
  meta["thumbs"] = {page.thumb_q, page.thumb_k};
  meta["map"] = {page.map_q, page.map_k};
  meta["tau"] = page.tau > 0 ? ordered_json(page.tau) : ordered_json(nullptr);
  meta["least"] = page.tau > 0 ? ordered_json(page.least) : ordered_json(nullptr);
  meta["errors"] = {{"weight", number(page.weight_error)}, {"row_sum", number(page.row_sum_error)}};
  meta["left_out"] = page.left_out;
  add_layers(page, meta);
  return meta;
}

/// Names the content: a link made for one page is recognised as foreign by another.
std::string file_id(const std::string& meta, const std::string& thumbs) {
  models::Fingerprint print;
  print.add(meta);
  print.add(thumbs);
  std::string id;
  for (int shift = 60; shift >= 0; shift -= 4)
    id += "0123456789abcdef"[print.value() >> shift & 15];
  return id;
}

void write_layers(const PageData& page, const Sink& sink) {
  for (std::size_t l = 0; l < page.layers.size(); ++l) {
    std::string bytes = page.layers[l].norms;
    for (const PageHead& head : page.layers[l].heads) bytes += head.bytes;
    write_block("layer-" + std::to_string(l), bytes, sink);
  }
  for (std::size_t l = 0; l < page.layers.size(); ++l) {
    if (page.layers[l].steps.empty()) continue;
    write_block("steps-" + std::to_string(l), page.layers[l].steps, sink);
  }
}

/// explorer/page.html with its @@names@@ replaced.
void write_to(const PageData& page, const Sink& sink) {
  ordered_json meta = meta_json(page);
  const std::string id =
      file_id(meta.dump(-1, ' ', false, ordered_json::error_handler_t::replace), page.thumbs);
  meta["file"] = id;
  std::string_view rest = kPageHtml;
  for (bool name = false;; name = !name) {
    const std::size_t end = rest.find("@@");
    const std::string_view part = rest.substr(0, end);
    if (!name) {
      sink(part);
    } else if (part == "title") {
      sink(text_for_markup("Polyhead: " + page.model));
    } else if (part == "nonce") {
      sink(id);
    } else if (part == "meta") {
      sink(json_for_script(meta));
    } else if (part == "thumbs") {
      write_block("thumbs", page.thumbs, sink);
    } else if (part == "script") {
      sink("const STYLE = " + json_for_script(kPageStyle) + ";\n");
      sink(kPageScript);
    } else if (part == "layers") {
      write_layers(page, sink);
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 2);
  }
}

}  // namespace

void write_page(const std::string& path, const PageData& page) {
  formats::OutputFile file(path);
  write_to(page, [&](std::string_view text) { file.write(text.data(), text.size()); });
  file.commit();
}

std::string page_text(const PageData& page) {
  std::string text;
  write_to(page, [&](std::string_view part) { text += part; });
  return text;
}

}  // namespace polyhead::cli
