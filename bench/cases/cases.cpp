#include "cases/cases.hpp"

#include <algorithm>
#include <cassert>

namespace polyhead::bench {
namespace {

constexpr ElementType kTypes[] = {ElementType::float32, ElementType::bfloat16,
                                  ElementType::float16};

std::string size_name(std::int64_t tokens, std::int64_t dim) {
  return "n=" + std::to_string(tokens) + " d=" + std::to_string(dim);
}

Case square(std::string name, std::int64_t tokens, std::int64_t dim, double goal) {
  Case c;
  c.name = std::move(name);
  c.q_len = c.kv_len = tokens;
  c.head_dim = dim;
  c.goal = goal;
  return c;
}

Case in_bfloat16(Case c) {
  c.type = ElementType::bfloat16;
  c.against = Against::bfloat16;
  return c;
}

Case relative_to(Case c, std::string base) {
  c.against = Against::base;
  c.base = std::move(base);
  return c;
}

void add_full(std::vector<Case>& list) {
  for (const auto& [dim, float32, bfloat16, avx2] :
       {std::tuple(64, 0.88, 0.76, 0.86), std::tuple(128, 0.90, 0.85, 0.89)}) {
    const std::string size = size_name(1024, dim);
    list.push_back(square("full float32 " + size, 1024, dim, float32));
    list.push_back(in_bfloat16(square("full bfloat16 " + size, 1024, dim, bfloat16)));
    Case forced = square("full float32 avx2 " + size, 1024, dim, avx2);
    forced.isa = Isa::avx2;
    list.push_back(forced);
    Case half =
        relative_to(square("full float16 " + size, 1024, dim, 0.95), "full float32 " + size);
    half.type = ElementType::float16;
    list.push_back(half);
  }
  Case strided = square("full float32 tokens first n=1024 d=64", 1024, 64, 0.0);
  strided.order = Order::tokens_first;
  list.push_back(strided);
  list.push_back(square("full float32 n=2048 d=64", 2048, 64, 0.88));
  Case two = relative_to(square("full float32 n=2048 d=64 two threads", 2048, 64, 1.9),
                         "full float32 n=2048 d=64");
  two.threads = 2;
  list.push_back(two);
}

void add_causal(std::vector<Case>& list) {
  struct Goal {
    int tokens, dim;
    double float32, bfloat16;
  };
  for (const Goal& g :
       {Goal{512, 64, 0.73, 0.66}, Goal{1024, 64, 0.81, 0.70}, Goal{4096, 64, 0.84, 0.76},
        Goal{512, 128, 0.73, 0.70}, Goal{1024, 128, 0.83, 0.77}, Goal{4096, 128, 0.87, 0.82}}) {
    for (const bool wide : {true, false}) {
      const std::string name =
          std::string("causal ") + (wide ? "float32 " : "bfloat16 ") + size_name(g.tokens, g.dim);
      Case c = square(name, g.tokens, g.dim, wide ? g.float32 : g.bfloat16);
      c.pattern = Pattern::causal;
      list.push_back(wide ? c : in_bfloat16(c));
    }
  }
  for (const bool wide : {true, false}) {
    for (const Order order : {Order::heads_first, Order::tokens_first}) {
      Case c = square(std::string("causal 32/8 heads ") + (wide ? "float32" : "bfloat16") +
                          (order == Order::tokens_first ? " tokens first" : "") + " n=2048 d=128",
                      2048, 128, wide ? 0.85 : 0.81);
      c.pattern = Pattern::causal;
      c.q_heads = 32;
      c.kv_heads = 8;
      c.order = order;
      list.push_back(wide ? c : in_bfloat16(c));
    }
  }
  Case one = square("causal one head n=4096 d=64", 4096, 64, 0.0);
  one.pattern = Pattern::causal;
  one.q_heads = one.kv_heads = 1;
  list.push_back(one);
  // Within 10 % of 256 times the time of 4,096: 1 / 1.1 of its rate.
  Case longest = relative_to(one, one.name);
  longest.name = "causal one head n=65536 d=64";
  longest.q_len = longest.kv_len = 65536;
  longest.goal = 0.909;
  list.push_back(longest);
}

void add_patterns(std::vector<Case>& list) {
  Case small = square("full float32 32 sequences n=128 d=64", 128, 64, 0.75);
  small.batch = 32;
  small.q_heads = small.kv_heads = 12;
  list.push_back(small);
  Case window = square("window 512 float32 n=16384 d=64", 16384, 64, 0.75);
  window.pattern = Pattern::window;
  list.push_back(window);
  const std::string base = "full float32 n=1024 d=64";
  Case bytes = relative_to(square("dense mask n=1024 d=64", 1024, 64, 0.90), base);
  bytes.pattern = Pattern::mask_bytes;
  list.push_back(bytes);
  Case bits = relative_to(square("packed dense mask n=1024 d=64", 1024, 64, 0.95), base);
  bits.pattern = Pattern::mask_bits;
  list.push_back(bits);
  for (const auto& [name, extra, goal] :
       {std::tuple("soft-cap", Extra::soft_cap, 0.85), std::tuple("alibi", Extra::alibi, 0.85),
        std::tuple("bias", Extra::bias, 0.85), std::tuple("sink", Extra::sink, 0.97),
        std::tuple("row statistics", Extra::statistics, 0.97)}) {
    Case c = relative_to(square(std::string(name) + " n=1024 d=64", 1024, 64, goal), base);
    c.extra = extra;
    list.push_back(c);
  }
  // Half of a forward pass's work in at most 0.55 of its time: 0.5 / 0.55 of its rate.
  for (const auto& [name, work] :
       {std::pair("exact weights", Work::weights), std::pair("received mass", Work::received),
        std::pair("pooled maps", Work::pooled)}) {
    Case c = relative_to(square(std::string(name) + " n=1024 d=64", 1024, 64, 0.909), base);
    c.work = work;
    list.push_back(c);
  }
}

void add_layers(std::vector<Case>& list) {
  for (const auto& [rows, dim, goal] :
       {std::tuple(512, 768, 0.95), std::tuple(512, 4096, 0.91), std::tuple(128, 768, 0.86)}) {
    Case c;
    c.name = "projection " + std::to_string(rows) + " x " + std::to_string(dim) + " x " +
             std::to_string(dim);
    c.work = Work::projection;
    c.q_len = rows;
    c.q_heads = c.kv_heads = dim / 64;
    c.goal = goal;
    list.push_back(c);
  }
  Case layer = square("layer float32 n=512 model_dim=768", 512, 64, 0.85);
  layer.work = Work::layer;
  layer.q_heads = layer.kv_heads = 12;
  list.push_back(layer);
  layer.name = "layer bfloat16 n=512 model_dim=768";
  layer.goal = 0.72;
  list.push_back(in_bfloat16(layer));
}

/// Matrices of real models (SmolLM2-135M's, MiniLM's, Gemma 3 270M's): many rows at once against
/// arithmetic, one row against memory.
void add_products(std::vector<Case>& list) {
  struct Matrix {
    std::int64_t rows, in, out;
  };
  for (const Matrix& m :
       {Matrix{2048, 576, 576}, Matrix{2048, 576, 1536}, Matrix{2048, 1536, 576},
        Matrix{64, 576, 49152}, Matrix{2048, 384, 1536}, Matrix{2048, 640, 2048}}) {
    for (const auto& [type, goal] :
         {std::pair(WeightType::float32, 0.90), std::pair(WeightType::q4_1, 0.88),
          std::pair(WeightType::bfloat16, 0.80)}) {
      Case c;
      c.name = std::string("product ") + weight_type_name(type) + " " + std::to_string(m.rows) +
               " x " + std::to_string(m.in) + " x " + std::to_string(m.out);
      c.work = Work::product;
      c.q_len = m.rows;
      c.inputs = m.in;
      c.outputs = m.out;
      c.weights = type;
      c.goal = goal;
      list.push_back(type == WeightType::bfloat16 ? in_bfloat16(c) : c);
    }
  }
  for (const WeightType type : {WeightType::float32, WeightType::bfloat16, WeightType::q4_1,
                                WeightType::q8_0, WeightType::q4_k, WeightType::q6_k}) {
    for (const int threads : {1, 0}) {
      Case c;
      c.name = std::string("product ") + weight_type_name(type) + " one row x 1536 x 49152" +
               (threads == 0 ? " all threads" : "");
      c.work = Work::product;
      c.inputs = 1536;
      c.outputs = 49152;
      c.weights = type;
      c.type = type == WeightType::bfloat16 ? ElementType::bfloat16 : ElementType::float32;
      c.threads = threads;
      c.against = Against::dram;
      list.push_back(c);
    }
  }
}

void add_decode(std::vector<Case>& list) {
  // Goals by element type (as in kTypes) and group.
  struct Goal {
    int group;
    double of[3];
  };
  for (const Goal& g :
       {Goal{1, {0.94, 0.92, 0.90}}, Goal{4, {0.90, 0.85, 0.85}}, Goal{8, {0.85, 0.80, 0.70}}}) {
    for (int t = 0; t < 3; ++t) {
      Case c;
      c.name = "decode " + std::to_string(8 * g.group) + "/8 heads " + element_name(kTypes[t]) +
               " kv=32768 d=128";
      c.kv_len = 32768;
      c.q_heads = 8 * g.group;
      c.kv_heads = 8;
      c.head_dim = 128;
      c.type = kTypes[t];
      c.threads = 0;
      c.against = Against::dram;
      c.goal = g.of[t];
      list.push_back(c);
    }
  }
}

/// Caches of codes are what a model in bfloat16 may have instead of one of its own type.
ElementType queries_of(ElementType cached) {
  const bool wide = cached == ElementType::float32 || cached == ElementType::float16;
  return wide ? ElementType::float32 : ElementType::bfloat16;
}

/// One step over a cache that holds 16,384 tokens in one piece.
Case cache_step(int group, ElementType cached, int threads) {
  Case c;
  c.work = Work::cache;
  c.name = "cache " + std::to_string(8 * group) + "/8 heads " + element_name(cached) + " kv=16384";
  if (threads == 1) c.name += " one thread";
  c.kv_len = 16384;
  c.q_heads = 8 * group;
  c.kv_heads = 8;
  c.head_dim = 128;
  c.type = queries_of(cached);
  c.cached = cached;
  c.threads = threads;
  c.against = Against::dram;
  return c;
}

/// The same over pages, as a share of its rate.
Case over_pages(const Case& of, std::int64_t page_tokens, bool in_order, double goal) {
  Case c = relative_to(of, of.name);
  const std::string pages =
      " pages of " + std::to_string(page_tokens) + (in_order ? " in order" : "");
  c.name.insert(c.name.find(" kv="), pages);
  c.page_tokens = page_tokens;
  c.pages_in_order = in_order;
  c.goal = goal;
  return c;
}

/// Caches of each type, those of codes as a share of the tokens a second of others.
void add_cache_types(std::vector<Case>& list, int group, int threads) {
  const bool four = group == 4;
  const auto add = [&](ElementType cached, double goal, const std::string& base = {}) {
    Case c = cache_step(group, cached, threads);
    if (!base.empty()) c = relative_to(c, base);
    c.goal = goal;
    list.push_back(c);
    return c;
  };
  const Case plain = add(ElementType::bfloat16, four ? 0.85 : 0.80);
  add(ElementType::float32, four ? 0.90 : 0.85);
  add(ElementType::float16, four ? 0.85 : 0.70);
  if (four) {
    for (const bool in_order : {true, false}) {
      list.push_back(over_pages(plain, 64, in_order, 1 / 1.03));
      list.push_back(over_pages(plain, 16, in_order, 1 / 1.08));
    }
  }
  const Case int8 = add(ElementType::int8, four ? 1.4 : 1.1, plain.name);
  add(ElementType::int4, 1.0, int8.name);
  add(ElementType::float8_e4m3, 0.0, plain.name);
  if (threads == 1) return;
  Case wide = relative_to(int8, plain.name);
  wide.name += " float32 queries";
  wide.type = ElementType::float32;
  wide.goal = 0.0;
  list.push_back(wide);
}

/// Sequences on pages of their own, in no order and as the pool places them.
Case add_sequences(std::vector<Case>& list, std::int64_t batch, std::int64_t kv_len,
                   std::int64_t head_dim, ElementType cached) {
  Case c = cache_step(4, cached, 0);
  c.name = "cache " + std::to_string(batch) + " sequences of " + std::to_string(kv_len) + " " +
           element_name(cached);
  c.batch = batch;
  c.kv_len = kv_len;
  c.head_dim = head_dim;
  c.page_tokens = 64;
  list.push_back(c);
  Case in_order = relative_to(c, c.name);
  in_order.name += " in order";
  in_order.pages_in_order = true;
  list.push_back(in_order);
  return c;
}

void add_shared(std::vector<Case>& list, const Case& apart) {
  Case shared = relative_to(apart, apart.name);
  shared.name += " 8192 shared";
  shared.shared_tokens = 8192;
  shared.goal = 2.0;
  list.push_back(shared);
  shared.name = apart.name + " 4096 shared, by fours 8192";
  shared.shared_tokens = shared.shared_by_four = 4096;
  shared.goal = 0.0;
  list.push_back(shared);
}

/// Decoding steps over caches.
void add_caches(std::vector<Case>& list) {
  for (const int threads : {1, 0}) {
    for (const int group : {4, 8}) add_cache_types(list, group, threads);
  }
  const Case equal = add_sequences(list, 32, 1024, 128, ElementType::bfloat16);
  Case ragged = relative_to(equal, equal.name);
  ragged.name = "cache 32 sequences of 32 to 2016 bfloat16";
  ragged.ragged = true;
  ragged.goal = 0.90;
  list.push_back(ragged);
  for (const ElementType cached : {ElementType::float32, ElementType::bfloat16, ElementType::int8})
    add_shared(list, add_sequences(list, 16, 8256, 64, cached));
}

/// One decoding step of latent attention in absorbed form, DeepSeek-V3's latents.
void add_latent(std::vector<Case>& list) {
  for (const int heads : {16, 128}) {
    Case c;
    c.name = "latent decode " + std::to_string(heads) + " heads float32 kv=8192";
    c.kv_len = 8192;
    c.q_heads = heads;
    c.kv_heads = 1;
    c.head_dim = 576;
    c.latent_dim = 512;
    c.goal = 0.75;
    list.push_back(c);
    c.name = "latent decode " + std::to_string(heads) + " heads bfloat16 kv=8192";
    list.push_back(in_bfloat16(c));
  }
}

std::vector<Case> make_cases() {
  std::vector<Case> list;
  add_full(list);
  add_causal(list);
  add_patterns(list);
  add_layers(list);
  add_products(list);
  add_decode(list);
  add_latent(list);
  add_caches(list);
  return list;
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> list = make_cases();
  return list;
}

const Case& case_named(const std::string& name) {
  const auto found =
      std::find_if(cases().begin(), cases().end(), [&](const Case& c) { return c.name == name; });
  assert(found != cases().end());
  return *found;
}

}  // namespace polyhead::bench
