/* The C door to what a call did, beyond the second pass of polyhead_inspect(): every number of one
 * row, and what each head did over a text. The rules of polyhead_c.h hold here too; formulas,
 * edge cases, accuracy and thread rules are those of explain.h and heads.h.
 */
#ifndef POLYHEAD_POLYHEAD_INSPECT_C_H
#define POLYHEAD_POLYHEAD_INSPECT_C_H

#include "polyhead/polyhead_layer_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Every number of one row ---- */

/* Which row; NULL wherever one is taken: query 0 of sequence 0, all heads. */
typedef struct polyhead_explain_row {
  size_t struct_bytes;
  int64_t query;    /* index within the sequence */
  int64_t batch;    /* sequence */
  int32_t one_head; /* 1: `head` alone; 0: all query heads */
  int32_t reserved; /* 0 */
  int64_t head;
} polyhead_explain_row;

/* A row that was traced, in double. */
typedef struct polyhead_trace polyhead_trace;

/* Traces one row of a call of attention; `out` of the call is not needed. w_o [out, q_heads *
 * value_dim] and b_o [out] project what the heads give; NULL: not. */
POLYHEAD_C_API polyhead_status polyhead_explain(const polyhead_attention_arguments* call,
                                                const polyhead_explain_row* row,
                                                const polyhead_view* w_o, const polyhead_view* b_o,
                                                polyhead_trace** trace);

/* The same of a layer's call: of x itself, of x over a context, and of x after what a cache holds,
 * in which its own keys and values are each sequence's last. */
POLYHEAD_C_API polyhead_status polyhead_layer_explain(const polyhead_layer* layer,
                                                      const polyhead_view* x,
                                                      const polyhead_explain_row* row,
                                                      const polyhead_layer_call* call,
                                                      polyhead_trace** trace);
POLYHEAD_C_API polyhead_status polyhead_layer_explain_cross(
    const polyhead_layer* layer, const polyhead_view* x, const polyhead_view* context,
    const polyhead_explain_row* row, const polyhead_layer_call* call, polyhead_trace** trace);
POLYHEAD_C_API polyhead_status polyhead_layer_explain_view(
    const polyhead_layer* layer, const polyhead_view* x, const polyhead_kv_view* kv,
    const polyhead_explain_row* row, const polyhead_layer_call* call, polyhead_trace** trace);
POLYHEAD_C_API void polyhead_trace_destroy(polyhead_trace* trace);

/* What is said of the whole row. Arrays live as long as the trace. */
typedef struct polyhead_trace_row {
  size_t struct_bytes;
  int64_t batch, query;
  int64_t q_pos;  /* where the query stands among the keys */
  int64_t kv_len; /* keys of the sequence, without padding */
  int64_t heads;  /* that were traced */
  double scale;   /* of products */
  /* A layer's row of x; all heads side by side, whichever were traced; the same projected. NULL
   * with a count of 0 where there is none. */
  const double *input, *concatenated, *projected;
  int64_t input_count, concatenated_count, projected_count;
} polyhead_trace_row;

/* One head. Arrays over keys have kv_len entries, hidden keys included, and live as long as the
 * trace. */
typedef struct polyhead_trace_head {
  size_t struct_bytes;
  int64_t head, kv_head, head_dim, value_dim;
  const double* q;        /* [head_dim], as attention reads it */
  const double* k;        /* [kv_len, head_dim] */
  const double* v;        /* [kv_len, value_dim] */
  const double* products; /* q.k */
  const double* scaled;   /* scale * q.k */
  const double* modified; /* after soft-cap, bias, ALiBi and custom modifiers */
  const uint8_t* visible; /* 1: by the mask and by a score that is not -inf */
  const double* masked;   /* modified, -inf where not visible */
  const double* weights;  /* their softmax; 0 where not visible */
  const double* dropped;  /* weights after dropout */
  const double* output;   /* [value_dim]: sum of dropped * v */
  double lse;             /* -inf where nothing is visible */
  double sink;            /* the sink's logit, where has_sink */
  int32_t has_sink;
  int32_t reserved; /* 0 */
} polyhead_trace_head;

POLYHEAD_C_API polyhead_status polyhead_trace_get_row(const polyhead_trace* trace,
                                                      polyhead_trace_row* row);

/* The trace's head number `index`, 0 .. heads - 1: ascending, of those that were traced. */
POLYHEAD_C_API polyhead_status polyhead_trace_get_head(const polyhead_trace* trace, int64_t index,
                                                       polyhead_trace_head* head);

/* ---- What each head did over a text ---- */

/* What weight may fall on, and a head's role: see HeadTarget and HeadRole in heads.h. */
enum {
  POLYHEAD_TARGET_INDUCTION = 0,
  POLYHEAD_TARGET_DUPLICATE = 1,
  POLYHEAD_TARGET_PREVIOUS = 2,
  POLYHEAD_TARGET_SELF = 3,
  POLYHEAD_TARGET_LOCAL = 4,
  POLYHEAD_TARGET_DELIMITER = 5,
  POLYHEAD_TARGETS = 6
};
enum {
  POLYHEAD_ROLE_RESTING = 0,
  POLYHEAD_ROLE_INDUCTION = 1,
  POLYHEAD_ROLE_DUPLICATE = 2,
  POLYHEAD_ROLE_PREVIOUS = 3,
  POLYHEAD_ROLE_SELF = 4,
  POLYHEAD_ROLE_LOCAL = 5,
  POLYHEAD_ROLE_DELIMITER = 6,
  POLYHEAD_ROLE_BROAD = 7,
  POLYHEAD_ROLE_MIXED = 8
};

/* "induction", "resting", ...; NULL for a value this library does not know. */
POLYHEAD_C_API const char* polyhead_head_target_name(int32_t target);
POLYHEAD_C_API const char* polyhead_head_role_name(int32_t role);

enum { POLYHEAD_POOL_MAXIMUM = 0, POLYHEAD_POOL_SUM = 1 };
enum { POLYHEAD_MAX_HEAD_MAPS = 4 };

/* What to gather of one layer; sizes are those of the whole run. Arrays are copied. */
typedef struct polyhead_head_study {
  size_t struct_bytes;
  int64_t q_heads, q_len, kv_len;
  const int32_t* tokens;     /* [kv_len] ids; NULL: copies are not measurable */
  const uint8_t* delimiters; /* [kv_len], not 0 at a delimiter; NULL: not measurable */
  int32_t cross;             /* 1: queries are tokens of another text */
  int32_t without_rows;      /* 1: no statistics of rows are kept (16 bytes a row and head) */
  int32_t without_received;  /* 1: nor the mass received by each key (4 bytes a key and head) */
  int32_t maps;              /* pooled maps, at most POLYHEAD_MAX_HEAD_MAPS: */
  int64_t map_q_bins[POLYHEAD_MAX_HEAD_MAPS], map_kv_bins[POLYHEAD_MAX_HEAD_MAPS];
  int32_t map_pool[POLYHEAD_MAX_HEAD_MAPS];
} polyhead_head_study;

typedef struct polyhead_head_statistics polyhead_head_statistics;

POLYHEAD_C_API polyhead_status polyhead_head_statistics_create(
    const polyhead_head_study* study, polyhead_head_statistics** statistics);
POLYHEAD_C_API void polyhead_head_statistics_destroy(polyhead_head_statistics* statistics);

/* A few rows of one head; arrays live until the visit returns. See HeadRowBlock. */
typedef struct polyhead_head_row_block {
  size_t struct_bytes;
  int64_t head, first_query, rows;
  const int64_t* offsets; /* sparse rows, where wanted: row r has entries [offsets[r], */
  const int32_t* keys;    /* offsets[r + 1]), ascending; its other keys have `rest` together */
  const float *weights, *rest;
  const float* full; /* full rows, where wanted: [rows, full_keys] */
  int64_t full_keys;
} polyhead_head_row_block;

/* Takes rows. `visit` returns 0, or another number for "failed", after which the statistics are of
 * no use. Visits of different heads come at the same time from different threads; those of one head
 * in the order of its queries. */
typedef struct polyhead_head_row_visitor {
  size_t struct_bytes;
  int32_t (*visit)(void* context, const polyhead_head_row_block* block);
  void* context;
  const uint8_t* full_heads; /* [q_heads], not 0 where full rows are wanted; NULL: of none */
  int32_t sparse;            /* 1: every weight >= threshold, and at least the `least` largest */
  int32_t least;             /* 0 .. 64 */
  float threshold;           /* at least 1e-4 with sparse; above 1: the `least` largest alone */
  int32_t reserved;          /* 0 */
} polyhead_head_row_visitor;

/* Takes the next q_len rows: `call` is what attention was given, with the lse it wrote. `visitor`
 * may be NULL. */
POLYHEAD_C_API polyhead_status polyhead_head_statistics_add(
    polyhead_head_statistics* statistics, const polyhead_attention_arguments* call,
    const polyhead_options* options, const polyhead_head_row_visitor* visitor);

/* One target of one head: see TargetMass. NaN where not measurable. Part of polyhead_head_measures,
 * it has no size of its own and never grows. */
typedef struct polyhead_target_mass {
  double mean, mean_chance, share, share_chance;
  int64_t rows;
} polyhead_target_mass;

/* One head over all rows seen so far: see HeadMeasures. */
typedef struct polyhead_head_measures {
  size_t struct_bytes;
  double mean_entropy, first, spread, mean_distance, mean_largest;
  int32_t role;
  int32_t reserved; /* 0 */
  polyhead_target_mass targets[POLYHEAD_TARGETS];
} polyhead_head_measures;

POLYHEAD_C_API polyhead_status polyhead_head_statistics_measures(
    const polyhead_head_statistics* statistics, int64_t head, polyhead_head_measures* measures);

/* Arrays of a head that live as long as the statistics, as views of one axis (a map: of two); of no
 * entries where not kept. All are written. A row that sees nothing has 0, 0, 0 and -1. */
POLYHEAD_C_API polyhead_status polyhead_head_statistics_rows(
    const polyhead_head_statistics* statistics, int64_t head, polyhead_view* entropy,
    polyhead_view* first, polyhead_view* largest, polyhead_view* largest_key);
POLYHEAD_C_API polyhead_status polyhead_head_statistics_received(
    const polyhead_head_statistics* statistics, int64_t head, polyhead_view* received);
POLYHEAD_C_API polyhead_status polyhead_head_statistics_map(
    const polyhead_head_statistics* statistics, int64_t head, int32_t index, polyhead_view* map);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* POLYHEAD_POLYHEAD_INSPECT_C_H */
