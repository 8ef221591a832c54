/* The C door from C: every kind of mask and modifier against the definition in double. */
#include <stdatomic.h>
#include <stdlib.h>

#include "c_case.h"

/* ---- Masks ---- */

static const int64_t kLengths[kBatch] = {30, 0}; /* the second sequence sees nothing at all */
static const int32_t kQDocuments[kQLen] = {0, 0, 1, 1, 2, 9, 9}; /* nobody is in document 9 */
static uint8_t visible_bytes[kQLen * kKvLen];
static uint8_t visible_bits[kQLen * 5]; /* rows of 40 bits */

static int causal_end(Pair at) { return at.key <= kKvLen - kQLen + at.query; }
static int causal_start(Pair at) { return at.key <= at.query; }
static int within_window(Pair at) {
  const int position = kKvLen - kQLen + at.query;
  return at.key >= position - 3 && at.key <= position + 1;
}
static int within_prefix(Pair at) { return at.key < 11 || causal_start(at); }
static int within_length(Pair at) { return at.key < kLengths[at.batch]; }
static int same_document(Pair at) { return kQDocuments[at.query] == at.key % 3; }
static int is_visible(Pair at) { return (at.query + at.key * at.key) % 3 == 0; }
static int visible_and_causal(Pair at) { return is_visible(at) && causal_end(at); }

static void test_masks(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  Meaning meaning = {NULL, NULL, NULL};
  check_call("no mask", &call, &meaning);

  call = arguments_of_call();
  call.mask = &mask;
  check_call("empty mask", &call, &meaning);

  call = arguments_of_call();
  call.mask = &mask;
  mask.causal = 1;
  mask.align = POLYHEAD_ALIGN_END;
  meaning.sees = causal_end;
  check_call("causal, end", &call, &meaning);

  mask.align = POLYHEAD_ALIGN_START;
  meaning.sees = causal_start;
  check_call("causal, start", &call, &meaning);

  mask.prefix_length = 11;
  meaning.sees = within_prefix;
  check_call("prefix", &call, &meaning);

  mask = (polyhead_mask){.struct_bytes = sizeof mask};
  mask.windowed = 1;
  mask.left = 3;
  mask.right = 1;
  mask.align = POLYHEAD_ALIGN_END;
  meaning.sees = within_window;
  check_call("window", &call, &meaning);
}

static void test_masks_of_arrays(void) {
  const int64_t batch_extent[1] = {kBatch};
  const int64_t q_extents[2] = {1, kQLen}, kv_extents[2] = {1, kKvLen};
  const int64_t pair_extents[4] = {1, 1, kQLen, kKvLen};
  const int64_t bit_strides[4] = {0, 0, 40, 1};
  const polyhead_view lengths = polyhead_make_view(kLengths, POLYHEAD_INT64, 1, batch_extent, NULL);
  int32_t kv_documents_data[kKvLen];
  polyhead_view q_documents, kv_documents, bytes, bits;
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  Meaning meaning = {NULL, NULL, NULL};
  int i;
  call.mask = &mask;

  mask.kv_lengths = &lengths;
  meaning.sees = within_length;
  check_call("lengths", &call, &meaning);

  for (i = 0; i < kKvLen; ++i) kv_documents_data[i] = i % 3;
  q_documents = polyhead_make_view(kQDocuments, POLYHEAD_INT32, 2, q_extents, NULL);
  kv_documents = polyhead_make_view(kv_documents_data, POLYHEAD_INT32, 2, kv_extents, NULL);
  mask = (polyhead_mask){.struct_bytes = sizeof mask};
  mask.q_documents = &q_documents;
  mask.kv_documents = &kv_documents;
  meaning.sees = same_document;
  check_call("documents", &call, &meaning);

  for (i = 0; i < kQLen * kKvLen; ++i) {
    const Pair at = {0, 0, i / kKvLen, i % kKvLen};
    visible_bytes[i] = (uint8_t)is_visible(at);
    if (is_visible(at)) visible_bits[at.query * 5 + at.key / 8] |= (uint8_t)(1 << at.key % 8);
  }
  bytes = polyhead_make_view(visible_bytes, POLYHEAD_BOOLEAN, 4, pair_extents, NULL);
  bits = polyhead_make_view(visible_bits, POLYHEAD_BIT, 4, pair_extents, bit_strides);
  mask = (polyhead_mask){.struct_bytes = sizeof mask};
  mask.visible = &bytes;
  meaning.sees = is_visible;
  check_call("boolean", &call, &meaning);
  poison(out, kOut);
  mask.visible = &bits;
  check_call("bits", &call, &meaning);
  mask.causal = 1;
  mask.align = POLYHEAD_ALIGN_END;
  meaning.sees = visible_and_causal;
  check_call("bits and causal", &call, &meaning);

  for (i = 0; i < kQLen * kKvLen; ++i) visible_bytes[i] = !visible_bytes[i];
  mask.visible = NULL;
  mask.hidden = &bytes;
  check_call("hidden and causal", &call, &meaning);
  mask.hidden = NULL;
  mask.also_hidden = &bytes;
  check_call("also hidden and causal", &call, &meaning);
}

/* ---- Modifiers ---- */

static float bias_data[kQHeads * kKvLen];
static const float kSlopes[kQHeads] = {0.5f, 0.25f, 1.0f, 0.0f};
static const float kSinks[kQHeads] = {0.0f, 2.0f, -3.0f, 1.0f};
static atomic_int callback_calls = 0; /* callbacks come from any thread */

static double scaled(double score, Pair at) {
  (void)at;
  return score * sqrt(kDim) * 0.7f;
}
static double capped_and_biased(double score, Pair at) {
  return 0.5 * tanh(score / 0.5) + (double)bias_data[at.head * kKvLen + at.key];
}
static double with_slopes(double score, Pair at) {
  return score - (double)kSlopes[at.head] * abs(kKvLen - kQLen + at.query - at.key);
}
static double closed_slopes(double score, Pair at) {
  return score - exp2(-8.0 * (at.head + 1) / kQHeads) * abs(kKvLen - kQLen + at.query - at.key);
}
static double by_callback(double score, Pair at) {
  return score + 0.125 * (at.key % 5) - 0.5 * at.head + 0.25 * at.query * (at.key % 2);
}

/* The same as by_callback, for the library: a tile at a time. */
static int32_t change_tile(void* context, const polyhead_score_tile* tile) {
  int key, lane;
  ++*(atomic_int*)context;
  if (tile->struct_bytes < sizeof *tile) return 3;
  for (key = 0; key < tile->key_count; ++key) {
    for (lane = 0; lane < tile->lane_count; ++lane) {
      const int64_t kv_pos = tile->first_kv_pos + key;
      tile->scores[key * tile->lane_count + lane] +=
          0.125f * (float)(kv_pos % 5) - 0.5f * (float)tile->head[lane] +
          0.25f * (float)tile->query[lane] * (float)(kv_pos % 2);
    }
  }
  return 0;
}

static int32_t fail_tile(void* context, const polyhead_score_tile* tile) {
  (void)context;
  (void)tile;
  return 42;
}

enum { kHeld = kKvLen - kQLen };

static const int32_t kParents[kBatch][kQLen] = {{-1, 0, 0, 2, -1, 4, 1}, {-1, -1, 1, 1, 0, 4, 5}};

static int held_or_followed(Pair at) {
  int token = at.query;
  if (at.key < kHeld) return 1;
  while (token >= 0 && token != at.key - kHeld) token = kParents[at.batch][token];
  return token >= 0;
}

/* Drafted tokens see the held ones, those they follow and themselves; the trees need not outlive
 * the mask. */
static void test_trees(void) {
  static const int64_t kDepths[kBatch * kQLen] = {0, 1, 1, 2, 0, 1, 2, 0, 0, 1, 1, 1, 2, 3};
  polyhead_draft_tree trees[kBatch];
  const polyhead_draft_tree* pointers[kBatch];
  polyhead_tree_mask* tree_mask = NULL;
  polyhead_view visible = {.struct_bytes = sizeof visible};
  polyhead_view positions = {.struct_bytes = sizeof positions};
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  const Meaning meaning = {held_or_followed, NULL, NULL};
  int i;
  for (i = 0; i < kBatch; ++i) {
    polyhead_draft_tree tree = {.struct_bytes = sizeof tree};
    tree.held = kHeld;
    tree.parents = kParents[i];
    tree.count = kQLen;
    trees[i] = tree;
    pointers[i] = &trees[i];
  }
  CHECK_OK(polyhead_tree_mask_create(pointers, kBatch, &tree_mask));
  memset(trees, 0xff, sizeof trees);
  CHECK_OK(polyhead_tree_mask_visible(tree_mask, &visible));
  CHECK_OK(polyhead_tree_mask_positions(tree_mask, &positions));
  CHECK(visible.element_type == POLYHEAD_BIT && visible.axes == 4);
  CHECK(positions.element_type == POLYHEAD_INT64 && positions.axes == 1 &&
        positions.extents[0] == kBatch * kQLen);
  for (i = 0; i < kBatch * kQLen; ++i)
    CHECK(((const int64_t*)positions.data)[i] == kHeld + kDepths[i]);
  mask.visible = &visible;
  call.mask = &mask;
  check_call("under trees", &call, &meaning);
  polyhead_tree_mask_destroy(tree_mask);
  polyhead_tree_mask_destroy(NULL);
}

/* Windows count positions in the text: two tokens that follow the same one see the same held keys.
 */
static void test_windowed_tree(void) {
  static const int32_t parents[3] = {-1, 0, 0};
  static const unsigned char expected[3][2] = {{0x01, 0x03}, {0x01, 0x06}, {0x01, 0x0a}};
  polyhead_draft_tree tree = {.struct_bytes = sizeof tree};
  const polyhead_draft_tree* pointer = &tree;
  polyhead_tree_mask* mask = NULL;
  polyhead_view visible = {.struct_bytes = sizeof visible};
  tree.held = 9;
  tree.parents = parents;
  tree.count = 3;
  tree.window = 2;
  tree.first_tokens = 1;
  CHECK_OK(polyhead_tree_mask_create(&pointer, 1, &mask));
  CHECK_OK(polyhead_tree_mask_visible(mask, &visible));
  CHECK(memcmp(visible.data, expected, sizeof expected) == 0);
  polyhead_tree_mask_destroy(mask);
  mask = NULL;
  CHECK_REFUSED((tree.window = 0, polyhead_tree_mask_create(&pointer, 1, &mask)),
                "trees[0].first_tokens (1) is given without a window");
  CHECK_REFUSED((tree.window = -1, polyhead_tree_mask_create(&pointer, 1, &mask)),
                "trees[0].window (-1) is negative");
}

static void test_bad_trees(void) {
  static const int32_t forward[2] = {-1, 1};
  polyhead_draft_tree tree = {.struct_bytes = sizeof tree};
  const polyhead_draft_tree* pointers[2];
  polyhead_tree_mask *mask = NULL, *none = NULL;
  polyhead_view view = {.struct_bytes = sizeof view};
  tree.parents = forward;
  tree.count = 1;
  pointers[0] = &tree;
  pointers[1] = NULL;
  CHECK_REFUSED(polyhead_tree_mask_create(pointers, 2, &mask), "trees[1] is null");
  CHECK_REFUSED(polyhead_tree_mask_create(pointers, -1, &mask), "sequences (-1) is negative");
  CHECK_REFUSED(polyhead_tree_mask_create(NULL, 1, &mask), "trees is null");
  CHECK_REFUSED(polyhead_tree_mask_create(pointers, 1, NULL), "mask is null");
  CHECK_REFUSED((tree.count = -1, polyhead_tree_mask_create(pointers, 1, &mask)),
                "the count of trees[0].parents (-1) is negative");
  CHECK_REFUSED((tree.count = 2, polyhead_tree_mask_create(pointers, 1, &mask)),
                "parents[1] (1) is not within -1 .. 0");
  CHECK_REFUSED((tree.parents = NULL, polyhead_tree_mask_create(pointers, 1, &mask)),
                "trees[0].parents is null");
  CHECK_REFUSED((tree.struct_bytes = 3, polyhead_tree_mask_create(pointers, 1, &mask)), "trees[0]");
  CHECK(mask == NULL);
  CHECK_OK(polyhead_tree_mask_create(NULL, 0, &none));
  CHECK_REFUSED(polyhead_tree_mask_visible(NULL, &view), "mask is null");
  CHECK_REFUSED(polyhead_tree_mask_visible(none, NULL), "visible is null");
  CHECK_REFUSED((view.struct_bytes = 3, polyhead_tree_mask_positions(none, &view)),
                "positions.struct_bytes (3)");
  polyhead_tree_mask_destroy(none);
}

static void test_modifiers(void) {
  const int64_t bias_extents[4] = {1, kQHeads, 1, kKvLen};
  const int64_t head_extent[1] = {kQHeads};
  const polyhead_view bias = polyhead_make_view(bias_data, POLYHEAD_FLOAT32, 4, bias_extents, NULL);
  const polyhead_view slopes = polyhead_make_view(kSlopes, POLYHEAD_FLOAT32, 1, head_extent, NULL);
  const polyhead_view sinks = polyhead_make_view(kSinks, POLYHEAD_FLOAT32, 1, head_extent, NULL);
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_mask mask = {.struct_bytes = sizeof mask, .align = POLYHEAD_ALIGN_END};
  polyhead_modifiers modifiers = {.struct_bytes = sizeof modifiers};
  Meaning meaning = {NULL, NULL, NULL};
  call.modifiers = &modifiers;
  fill_random(bias_data, kQHeads * kKvLen, 4);

  check_call("no modifier", &call, &meaning);
  modifiers.scale_given = 1;
  modifiers.scale = 0.7f;
  meaning.change = scaled;
  check_call("scale", &call, &meaning);

  modifiers = (polyhead_modifiers){.struct_bytes = sizeof modifiers};
  modifiers.soft_cap = 0.5f;
  modifiers.bias = &bias;
  meaning.change = capped_and_biased;
  check_call("soft-cap and bias", &call, &meaning);

  modifiers = (polyhead_modifiers){.struct_bytes = sizeof modifiers};
  call.mask = &mask; /* distances need to know where queries stand */
  modifiers.alibi_slopes = &slopes;
  meaning.change = with_slopes;
  check_call("ALiBi, slopes given", &call, &meaning);
  modifiers.alibi_slopes = NULL;
  modifiers.alibi = 1;
  meaning.change = closed_slopes;
  check_call("ALiBi, closed form", &call, &meaning);

  modifiers = (polyhead_modifiers){.struct_bytes = sizeof modifiers};
  modifiers.sink = &sinks;
  meaning.change = NULL;
  meaning.sink = kSinks;
  check_call("sink", &call, &meaning);
}

static void test_callbacks(void) {
  const polyhead_tile_modifier change = {sizeof change, &callback_calls, change_tile};
  const polyhead_tile_modifier fail = {sizeof fail, NULL, fail_tile};
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_modifiers modifiers = {.struct_bytes = sizeof modifiers};
  const Meaning meaning = {NULL, by_callback, NULL};
  call.modifiers = &modifiers;
  modifiers.custom[0] = &change;
  check_call("callback", &call, &meaning);
  CHECK(callback_calls > 0);

  modifiers.custom[3] = &fail;
  CHECK(polyhead_attention(&call, NULL) == POLYHEAD_CALLBACK_FAILED);
  CHECK(strstr(polyhead_last_error(), "42") != NULL);
}

static void test_dropout(void) {
  static float first[kOut];
  const int64_t batch_extent[1] = {kBatch};
  const int64_t ids_data[kBatch] = {0, 1};
  const polyhead_view ids = polyhead_make_view(ids_data, POLYHEAD_INT64, 1, batch_extent, NULL);
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_modifiers modifiers = {.struct_bytes = sizeof modifiers};
  const polyhead_mask mask = {.struct_bytes = sizeof mask, .align = POLYHEAD_ALIGN_END};
  call.mask = &mask;
  call.modifiers = &modifiers;
  modifiers.dropout = 0.5f;
  modifiers.dropout_seed = 7;
  CHECK_OK(polyhead_attention(&call, NULL));
  memcpy(first, out, sizeof out);
  modifiers.sequence_ids = &ids; /* the default, said aloud */
  CHECK_OK(polyhead_attention(&call, NULL));
  CHECK(memcmp(first, out, sizeof out) == 0);
  modifiers.dropout_seed = 8;
  CHECK_OK(polyhead_attention(&call, NULL));
  CHECK(memcmp(first, out, sizeof out) != 0);
}

int main(void) {
  test_masks();
  test_masks_of_arrays();
  test_trees();
  test_windowed_tree();
  test_bad_trees();
  test_modifiers();
  test_callbacks();
  test_dropout();
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
