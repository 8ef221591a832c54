// Machines and element types by name, and finding by name.
#include <algorithm>
#include <cctype>
#include <utility>

#include "base/refuse.hpp"
#include "base/weight_type.hpp"
#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {
namespace {

std::string lower(std::string_view text) {
  std::string folded(text);
  for (char& c : folded) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return folded;
}

/// Levenshtein's distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> names_of(const StorageType& type) { return {type.name}; }
template <class Preset>
std::vector<std::string> names_of(const Preset& preset) {
  std::vector<std::string> names{preset.id};
  names.insert(names.end(), preset.aliases.begin(), preset.aliases.end());
  return names;
}

constexpr std::size_t kLongestName = 200;  // longer ones are not worth comparing

template <class Preset>
const Preset& find(const char* what, const std::vector<Preset>& presets, std::string_view wanted) {
  const std::string name = lower(wanted);
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, name.size() / 3) + 1;  // what is further is no slip
  for (const Preset& preset : presets) {
    for (const std::string& known : names_of(preset)) {
      if (known == name) return preset;
      const std::size_t apart = name.size() > kLongestName ? least : distance(known, name);
      if (apart < least) {
        least = apart;
        nearest = known;
      }
    }
  }
  if (name.size() > kLongestName)
    base::refuse("cost", what, " of ", name.size(), " characters is not known");
  if (nearest.empty()) base::refuse("cost", what, " '", std::string(wanted), "' is not known");
  base::refuse("cost", what, " '", std::string(wanted), "' is not known; did you mean '", nearest,
               "'?");
}

Machine machine(const char* id, const char* name, const char* source,
                std::vector<std::string> aliases) {
  Machine made;
  made.id = id;
  made.name = name;
  made.source = source;
  made.aliases = std::move(aliases);
  return made;
}

/// Rates in tera-FLOPs a second; memory, bandwidth and link in GB and GB/s (10^9).
struct Datasheet {
  double f32, f16, fp8;
  std::int64_t memory;
  double bandwidth, link;
};

Machine with(Machine made, const Datasheet& sheet) {
  made.f32_flops = sheet.f32 * 1e12;
  made.f16_flops = sheet.f16 * 1e12;
  made.fp8_flops = sheet.fp8 * 1e12;
  made.memory_bytes = sheet.memory * 1'000'000'000;
  made.memory_bandwidth = sheet.bandwidth * 1e9;
  made.link_bandwidth = sheet.link * 1e9;
  return made;
}

/// A type of weights, under its own name where no other is given.
StorageType weights_as(WeightType type, std::string name = "") {
  if (name.empty()) name = lower(weight_type_name(type));
  return {std::move(name), block_weights(type), block_bytes(type)};
}

}  // namespace

const std::vector<Machine>& machine_presets() {
  static const std::vector<Machine> presets{
      with(machine("a100", "NVIDIA A100 80GB SXM",
                   "NVIDIA A100 datasheet: dense tensor cores, NVLink 600 GB/s both ways",
                   {"a100-80gb"}),
           {19.5, 312, 0, 80, 2039, 300}),
      with(machine("h100", "NVIDIA H100 80GB SXM",
                   "NVIDIA H100 datasheet, halved to dense: NVLink 900 GB/s both ways",
                   {"h100-sxm", "h100-80gb"}),
           {67, 989, 1979, 80, 3350, 450}),
      with(machine("h200", "NVIDIA H200 141GB SXM",
                   "NVIDIA H200 datasheet, halved to dense: NVLink 900 GB/s both ways",
                   {"h200-sxm"}),
           {67, 989, 1979, 141, 4800, 450}),
      with(machine("b200", "NVIDIA B200 192GB",
                   "NVIDIA Blackwell architecture brief: dense, NVLink 1.8 TB/s both ways", {}),
           {80, 2250, 4500, 192, 8000, 900}),
      with(machine("mi300x", "AMD Instinct MI300X 192GB",
                   "AMD Instinct MI300X datasheet: dense, seven Infinity Fabric links of 128 GB/s",
                   {"mi-300x"}),
           {163.4, 1307.4, 2614.9, 192, 5300, 448}),
      with(
          machine("desktop-cpu", "desktop CPU (Ryzen 9 7950X, DDR5-5200, 64 GB)",
                  "AMD's and JEDEC's figures: 16 cores at 4.5 GHz, 32 float32 or 64 bfloat16 FLOPs "
                  "a cycle; two channels of 41.6 GB/s",
                  {"desktop", "cpu"}),
          {2.304, 4.608, 0, 64, 83.2, 0})};
  return presets;
}

const std::vector<StorageType>& storage_types() {
  // mxfp4: one 8-bit scale a block (OCP Microscaling Formats 1.0).
  static const std::vector<StorageType> types{weights_as(WeightType::float32),
                                              weights_as(WeightType::float16),
                                              weights_as(WeightType::bfloat16),
                                              {"fp8", 1, 1},
                                              weights_as(WeightType::q8_0, "int8"),
                                              weights_as(WeightType::q4_0, "int4"),
                                              {"mxfp4", 32, 17},
                                              weights_as(WeightType::q8_0),
                                              weights_as(WeightType::q4_0),
                                              weights_as(WeightType::q4_1),
                                              weights_as(WeightType::q5_0),
                                              weights_as(WeightType::q5_1),
                                              weights_as(WeightType::q2_k),
                                              weights_as(WeightType::q3_k),
                                              weights_as(WeightType::q4_k),
                                              weights_as(WeightType::q5_k),
                                              weights_as(WeightType::q6_k),
                                              {"cache-int8", 32, 36},
                                              {"cache-int4", 32, 20},
                                              {"cache-fp8", 32, 32},
                                              {"int8-by-channel", 32, 32, 4},
                                              {"int4-by-channel", 32, 16, 4}};
  return types;
}

const ModelDescription& model_preset(std::string_view id) {
  return find("model", model_presets(), id);
}
const Machine& machine_preset(std::string_view id) {
  return find("machine", machine_presets(), id);
}
const StorageType& storage_type(std::string_view name) {
  return find("type", storage_types(), name);
}

}  // namespace polyhead::inline v0::cost
