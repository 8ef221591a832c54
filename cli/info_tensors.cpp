#include "cli/info_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/table.hpp"
#include "models/formats/array.hpp"

namespace polyhead::cli {
namespace {

using models::WeightTensor;

std::vector<std::int64_t> shape_in_file(const WeightTensor& tensor) {
  std::vector<std::int64_t> shape = tensor.shape;
  if (tensor.transposed) std::ranges::reverse(shape);
  return shape;
}

}  // namespace

void print_tensors(const Console& console, const models::ModelFile& file) {
  using enum Table::Align;
  const std::vector<WeightTensor>& tensors = file.tensors();
  const bool renamed = std::ranges::any_of(
      tensors, [](const WeightTensor& tensor) { return tensor.file_name != tensor.name; });
  Table table({left, left, left, right, left});
  table.header({"tensor", "type", "shape", "bytes", renamed ? "is" : ""});
  std::size_t bytes = 0;
  for (const WeightTensor& tensor : tensors) {
    table.row({printable(tensor.file_name), weight_type_name(tensor.type),
               formats::shape_text(shape_in_file(tensor)),
               grouped(static_cast<long long>(tensor.data.size())),
               renamed ? printable(tensor.name) : ""});
    bytes += tensor.data.size();
  }
  table.rule();
  table.row({grouped(static_cast<long long>(tensors.size())) + " tensors", "", "",
             grouped(static_cast<long long>(bytes)), ""});
  table.print(console);
}

nlohmann::ordered_json tensors_json(const models::ModelFile& file) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const WeightTensor& tensor : file.tensors()) {
    list.push_back({{"name", tensor.file_name},
                    {"canonical", tensor.name},
                    {"type", weight_type_name(tensor.type)},
                    {"shape", shape_in_file(tensor)},
                    {"bytes", tensor.data.size()}});
  }
  return list;
}

}  // namespace polyhead::cli
