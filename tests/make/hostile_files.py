#!/usr/bin/env python3
"""Makes the seeds of the fuzzers for models' files, tests/fuzz/corpus/{gguf,model_config}: small honest files (ok_*) and
small lying ones, each named by its lie. tests/hostile_files_test.cpp reads them all.

  tests/make/hostile_files.py
"""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent.parent / "fuzz" / "corpus"
U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q",
           F64: "<d"}
HUGE = 2**64 - 1


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def scalar(kind, value):
    return text(value) if kind == TEXT else struct.pack(FORMATS[kind], value)


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + scalar(kind, value)


def array(key, kind, values, count=None):
    return (text(key) + struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count)
            + b"".join(scalar(kind, v) for v in values))


def gguf(values, tensors=(), version=3, value_count=None, tensor_count=None, alignment=32, magic=b"GGUF"):
    """tensors: (name, shape outermost first, type, offset or None, data)"""
    infos, data = b"", b""
    for name, shape, kind, offset, content in tensors:
        data += bytes(-len(data) % alignment)
        infos += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        infos += struct.pack("<IQ", kind, len(data) if offset is None else offset)
        data += content
    head = magic + struct.pack("<IQQ", version, len(tensors) if tensor_count is None else tensor_count,
                               len(values) if value_count is None else value_count) + b"".join(values) + infos
    return head + bytes(-len(head) % alignment) + data


def f32(name, *shape):
    count = 1
    for extent in shape:
        count *= extent
    return (name, shape, 0, None, bytes(4 * count))


VALUES = {
    "general.architecture": (TEXT, "llama"), "llama.block_count": (U32, 1), "llama.context_length": (U32, 32),
    "llama.embedding_length": (U32, 8), "llama.feed_forward_length": (U32, 12), "llama.attention.head_count": (U32, 4),
    "llama.attention.head_count_kv": (U32, 2), "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
}
TOKENS = ["<unk>", "a", "b", "ab", " ", "c"]
LISTS = [array("tokenizer.ggml.tokens", TEXT, TOKENS), array("tokenizer.ggml.token_type", I32, [2, 1, 1, 1, 1, 1]),
         array("tokenizer.ggml.merges", TEXT, ["a b"]), entry("tokenizer.ggml.model", TEXT, "gpt2"),
         entry("tokenizer.ggml.pre", TEXT, "smollm")]
TENSORS = [f32("token_embd.weight", 6, 8), f32("output_norm.weight", 8), f32("blk.0.attn_norm.weight", 8),
           f32("blk.0.attn_q.weight", 8, 8), f32("blk.0.attn_k.weight", 4, 8), f32("blk.0.attn_v.weight", 4, 8),
           f32("blk.0.attn_output.weight", 8, 8), f32("blk.0.ffn_norm.weight", 8), f32("blk.0.ffn_gate.weight", 12, 8),
           f32("blk.0.ffn_up.weight", 12, 8), f32("blk.0.ffn_down.weight", 8, 12)]


def model(tensors=None, lists=None, **changes):
    """The tiny llama with some metadata changed: key=(kind, value), dots written as __; None drops a key."""
    values = dict(VALUES)
    for key, value in changes.items():
        values[key.replace("__", ".")] = value
    return gguf([entry(k, *v) for k, v in values.items() if v is not None] + (LISTS if lists is None else lists),
                TENSORS if tensors is None else tensors)


def with_tensor(index, tensor):
    return TENSORS[:index] + [tensor] + TENSORS[index + 1:]


whole = model()
GGUF = {
    "ok_llama": whole,
    "ok_every_type": gguf([entry("general.architecture", TEXT, "none")]
                          + [entry(f"k{kind}", kind, 1) for kind in FORMATS]
                          + [array(f"a{kind}", kind, [1, 0]) for kind in FORMATS] + [array("at", TEXT, ["x", "", "y"])],
                          [(f"t{kind}", (2, 256), kind, None, bytes(2 * size)) for kind, size in
                           {0: 1024, 1: 512, 30: 512, 2: 144, 3: 160, 6: 176, 7: 192, 8: 272, 10: 84, 11: 110, 12: 144,
                            13: 176, 14: 210}.items()]),
    "empty": b"", "magic_alone": b"GGUF", "other_magic": gguf([], magic=b"GGML"), "version_1": gguf([], version=1),
    "big_endian": b"GGUF" + struct.pack(">I", 3) + bytes(16),
    "values_huge": gguf([], value_count=HUGE), "tensors_huge": gguf([], tensor_count=HUGE),
    "values_many": gguf([entry("a", U8, 1)], value_count=1000),
    "counts_overflow": gguf([], value_count=2**60, tensor_count=2**60),
    "key_huge": gguf([struct.pack("<Q", HUGE) + b"k"]),
    "key_twice": gguf([entry("k", U8, 1), entry("k", U8, 2)]),
    "text_huge": gguf([text("k") + struct.pack("<IQ", TEXT, 2**63)]),
    "array_huge": gguf([array("k", U32, [1], count=2**62)]),
    "array_of_texts_huge": gguf([array("k", TEXT, ["a"], count=2**61)]),
    "array_of_arrays": gguf([text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]),
    "array_of_no_type": gguf([text("k") + struct.pack("<IIQ", ARRAY, 99, 1)]),
    "value_of_no_type": gguf([text("k") + struct.pack("<I", 13)]), "bool_of_2": gguf([entry("k", BOOL, 2)]),
    "alignment_0": gguf([entry("general.alignment", U32, 0)]), "alignment_3": gguf([entry("general.alignment", U32, 3)]),
    "alignment_huge": gguf([entry("general.alignment", U64, 2**63)]),
    "alignment_of_text": gguf([entry("general.alignment", TEXT, "32")]),
    "tensor_axes": gguf([], [("t", (1,) * 5, 0, None, bytes(4))]),
    "tensor_axis_0": gguf([], [("t", (0, 2**40), 0, None, b"")]),
    "tensor_product_overflows": gguf([], [("t", (2**32, 2**32), 0, None, bytes(64))]),
    "tensor_bytes_overflow": gguf([], [("t", (2**31, 2**31), 0, None, bytes(64))]),
    "tensor_outside": gguf([], [("t", (1024,), 0, None, bytes(64))]),
    "tensor_offset_huge": gguf([], [("t", (8,), 0, 2**64 - 32, bytes(64))]),
    "tensor_unaligned": gguf([], [("t", (4,), 0, 4, bytes(64))]),
    "tensor_twice": gguf([], [f32("t", 8), f32("t", 8)]),
    "tensors_overlap": gguf([], [("t", (16,), 0, 0, bytes(64)), ("u", (8,), 0, 32, b"")]),
    "tensor_type": gguf([], [("t", (8,), 4, None, bytes(64))]),
    "tensor_half_block": gguf([], [("t", (2, 16), 2, None, bytes(64))]),
    "tensor_block_rows": gguf([], [("t", (256, 1), 12, None, bytes(144))]),
    "cut_in_metadata": whole[:200], "cut_in_tensors": whole[:900], "cut_in_data": whole[:-1],
    "architecture": model(general__architecture=(TEXT, "\x1b]0;owned\x07")),
    "no_architecture": model(general__architecture=None),
    "architecture_of_number": model(general__architecture=(U32, 1)),
    "layers_0": model(llama__block_count=(U32, 0)), "layers_huge": model(llama__block_count=(U64, 2**63 - 1)),
    "layers_negative": model(llama__block_count=(I32, -1)), "layers_missing": model(llama__block_count=(U32, 2)),
    "heads_0": model(llama__attention__head_count=(U32, 0)),
    "heads_huge": model(llama__attention__head_count=(U32, 2**32 - 1)),
    "kv_heads_do_not_divide": model(llama__attention__head_count_kv=(U32, 3)),
    "heads_negative": model(llama__attention__head_count=(I64, -4)),
    "dim_huge": model(llama__embedding_length=(U64, 2**62)), "ffn_huge": model(llama__feed_forward_length=(U64, 2**62)),
    "context_0": model(llama__context_length=(U32, 0)), "epsilon_nan": model(llama__attention__layer_norm_rms_epsilon=(F32, float("nan"))),
    "rope_base_0": model(llama__rope__freq_base=(F32, 0.0)), "rope_base_inf": model(llama__rope__freq_base=(F32, float("inf"))),
    "rope_dims_odd": model(llama__rope__dimension_count=(U32, 1)),
    "rope_scaling": model(llama__rope__scaling__type=(TEXT, "longrope"), llama__rope__scaling__factor=(F32, 2.0)),
    "experts": model(llama__expert_count=(U32, 8)), "window_negative": model(llama__attention__sliding_window=(I32, -5)),
    "ffn_by_layer_short": model(lists=[array("llama.feed_forward_length", U32, [])], llama__feed_forward_length=None),
    "embedding_missing": model(tensors=TENSORS[1:]), "embedding_flat": model(tensors=with_tensor(0, f32("token_embd.weight", 48))),
    "embedding_shape": model(tensors=with_tensor(0, f32("token_embd.weight", 6, 4))),
    "query_missing": model(tensors=TENSORS[:3] + TENSORS[4:]),
    "query_transposed": model(tensors=with_tensor(4, f32("blk.0.attn_k.weight", 8, 4))),
    "norm_quantised": model(tensors=with_tensor(1, ("output_norm.weight", (32,), 8, None, bytes(34)))),
    "unknown_tensor": model(tensors=TENSORS + [f32("blk.0.ffn_gate_inp.weight", 4, 8)]),
    "rope_freqs_zero": model(tensors=TENSORS + [f32("rope_freqs.weight", 1)]),
    "rope_freqs_long": model(tensors=TENSORS + [("rope_freqs.weight", (2049,), 0, None, bytes(8196))]),
}

LLAMA = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 6, "max_position_embeddings": 32}
NAMES = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]


def config(**changes):
    return json.dumps({k: v for k, v in {**LLAMA, **changes}.items() if v != "absent"}).encode()


def index(weight_map):
    return config() + b"\0" + json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


GEMMA = dict(model_type="gemma3_text", head_dim=4, sliding_window=16, layer_types=["full_attention"],
             rope_parameters={"full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                              "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}})
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 16, "short_factor": [2.0]}
MODEL_CONFIG = {
    "ok_longrope": config(rope_scaling=LONGROPE), "ok_dynamic": config(rope_scaling={"type": "dynamic", "factor": 2}),
    "longrope_pairs": config(rope_scaling={**LONGROPE, "short_factor": [1, 1]}),
    "longrope_zero": config(rope_scaling={**LONGROPE, "short_factor": [0]}),
    "longrope_text": config(rope_scaling={**LONGROPE, "short_factor": "1"}),
    "longrope_length": config(rope_scaling={**LONGROPE, "original_max_position_embeddings": 1}),
    "longrope_factor": config(rope_scaling={**LONGROPE, "attention_factor": -1}),
    "ok_llama": config(), "ok_window": config(model_type="mistral", sliding_window=4), "ok_llama3": config(rope_scaling=LLAMA3),
    "ok_layer_types": config(model_type="mistral", sliding_window=4, layer_types=["sliding_attention"]),
    "window_listed": config(layer_types=["sliding_attention"]),
    "window_null": config(**{**GEMMA, "layer_types": None, "sliding_window": None}),
    "rope_twice": config(rope_scaling=YARN, rope_parameters={**YARN, "factor": 2.0}),
    "rope_lengths": config(rope_scaling=YARN, original_max_position_embeddings=8),
    "soft_cap": config(final_logit_softcapping=30.0),
    "ok_yarn": config(rope_scaling=YARN), "ok_index": index({name: "shard.safetensors" for name in NAMES}),
    "gemma3": config(**GEMMA), "qwen3": config(model_type="qwen3", use_sliding_window=True, sliding_window=8),
    "gpt2": b'{"model_type":"gpt2","n_embd":8,"n_layer":1,"n_head":2,"n_positions":8,"vocab_size":6}',
    "bert": config(model_type="bert", type_vocab_size=2), "pooling": b'{"pooling_mode_cls_token":true}',
    "empty": b"", "not_json": b"{", "a_list": b"[]", "a_number": b"1e999", "deep": b"[" * 5000, "deep_objects": b'{"a":' * 5000,
    "twice": b'{"model_type":"llama","model_type":"llama"}', "no_type": config(model_type="absent"),
    "type_of_number": config(model_type=3), "type_with_escape": config(model_type="\x1b[2J"),
    "layers_0": config(num_hidden_layers=0), "layers_huge": config(num_hidden_layers=2**63 - 1),
    "layers_over": config(num_hidden_layers=2**64), "layers_negative": config(num_hidden_layers=-1),
    "layers_real": config(num_hidden_layers=1.5), "heads_0": config(num_attention_heads=0),
    "heads_do_not_divide": config(num_key_value_heads=3), "head_dim_huge": config(head_dim=2**62),
    "vocab_0": config(vocab_size=0), "dim_negative": config(hidden_size=-8), "window_negative": config(model_type="mistral", sliding_window=-1),
    "theta_0": config(rope_theta=0), "ok_theta_large": config(rope_theta=1e300),
    "scaling_type": config(rope_scaling={"type": "su", "factor": 2}), "scaling_factor": config(rope_scaling={"type": "linear", "factor": 0.1}),
    "scaling_of_text": config(rope_scaling="linear"), "layer_types_short": config(model_type="qwen2", layer_types=[]),
    "layer_types_other": config(model_type="qwen2", layer_types=["chunked"]), "quantised": config(quantization_config={}),
    "activation": config(hidden_act="relu"), "shape": config(hidden_size=16),
    "index_empty": index({}), "index_list": config() + b"\0[]", "index_up": index({"a": "../shard.safetensors"}),
    "index_absolute": index({"a": "/etc/passwd.safetensors"}), "index_missing": index({"a": "other.safetensors"}),
    "index_promise": index({"a": "shard.safetensors"}), "index_number": index({"a": 1}),
    "index_nul": index({"a": "shard.safetensors\0.safetensors"}),
}

for folder, files in (("gguf", GGUF), ("model_config", MODEL_CONFIG)):
    (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    for old in (CORPUS / folder).iterdir():
        old.unlink()
    for name, content in files.items():
        (CORPUS / folder / name).write_bytes(content)
