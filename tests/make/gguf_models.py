#!/usr/bin/env python3
"""Makes tests/data/gguf_models: a tiny random model of every architecture as GGUF, and what llama.cpp computes from it.

  python3 -m pip install -r bench/requirements.txt && tests/make/gguf_models.py
"""
import json
import pathlib

import gguf
import llama_cpp
import numpy as np

FOLDER = pathlib.Path(__file__).parent.parent / "data" / "gguf_models"
DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY, CONTEXT, WINDOW = 16, 4, 2, 8, 24, 20, 32, 6
LAYERS = {"gemma3": 6}  # the sixth sees everything
ROPE_DIVISORS = np.array([1, 1.5, 3, 8], np.float32)
random = np.random.default_rng(5)
ids = [int(i) for i in random.integers(0, VOCABULARY, 12)]


class Writer:
    def __init__(self, path, architecture):
        self.file = gguf.GGUFWriter(str(path), architecture)
        self.architecture = architecture
        self.plain = architecture in ("gpt2", "bert")
        self.bert = architecture == "bert"
        even = self.plain or architecture == "qwen2"  # llama.cpp takes no other head_dim there
        self.head_dim = DIM // HEADS if even else HEAD_DIM

    def tensor(self, name, *shape, scale=0.3, around=0.0):
        self.file.add_tensor(name, (around + random.normal(0, scale, shape)).astype(np.float32))

    def norm(self, name, size):
        self.tensor(name + ".weight", size, around=1.0)
        if self.plain:
            self.tensor(name + ".bias", size)

    def linear(self, name, rows, columns, bias):
        self.tensor(name + ".weight", rows, columns)
        if bias:
            self.tensor(name + ".bias", rows)

    def metadata(self, layers):
        f = self.file
        f.add_block_count(layers)
        f.add_context_length(CONTEXT)
        f.add_embedding_length(DIM)
        f.add_feed_forward_length(FFN)
        f.add_head_count(HEADS)
        f.add_head_count_kv(HEADS if self.plain else KV_HEADS)
        f.add_vocab_size(VOCABULARY)
        if self.plain:
            f.add_layer_norm_eps(1e-5)
        else:
            f.add_layer_norm_rms_eps(1e-5)
            f.add_rope_freq_base(50000.0)
            f.add_key_length(self.head_dim)
            f.add_value_length(self.head_dim)
        if self.architecture == "llama":
            f.add_rope_dimension_count(HEAD_DIM)
        if self.architecture == "gemma3":
            f.add_sliding_window(WINDOW)
        if self.bert:
            f.add_causal_attention(False)
            f.add_pooling_type(gguf.PoolingType.MEAN)
            f.add_token_type_count(2)
            f.add_tokenizer_model("bert")
            f.add_token_list(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
                             + [f"\u2581t{i}" for i in range(VOCABULARY - 5)])
            f.add_token_types([1] * VOCABULARY)
            f.add_pad_token_id(0)
            f.add_unk_token_id(1)
            f.add_bos_token_id(2)
            f.add_sep_token_id(3)
        else:
            f.add_tokenizer_model("gpt2")
            f.add_tokenizer_pre("gpt-2")
            f.add_token_list([f"t{i}" for i in range(VOCABULARY)])
            f.add_token_types([1] * VOCABULARY)
            f.add_token_merges(["t 0"])
            f.add_bos_token_id(0)
            f.add_eos_token_id(1)

    def layer(self, index):
        b, a, plain = f"blk.{index}.", self.architecture, self.plain
        kv_heads, head_dim = HEADS if plain else KV_HEADS, self.head_dim
        bias = plain or a == "qwen2"
        if not self.bert:
            self.norm(b + "attn_norm", DIM)
        if a == "gpt2":
            self.linear(b + "attn_qkv", 3 * DIM, DIM, True)
        else:
            self.linear(b + "attn_q", HEADS * head_dim, DIM, bias)
            self.linear(b + "attn_k", kv_heads * head_dim, DIM, bias)
            self.linear(b + "attn_v", kv_heads * head_dim, DIM, bias)
        if a in ("qwen3", "gemma3"):
            self.norm(b + "attn_q_norm", head_dim)
            self.norm(b + "attn_k_norm", head_dim)
        self.linear(b + "attn_output", DIM, HEADS * head_dim, plain)
        if a == "gemma3":
            self.norm(b + "post_attention_norm", DIM)
        self.norm(b + ("attn_output_norm" if self.bert else "ffn_norm"), DIM)
        if not plain:
            self.linear(b + "ffn_gate", FFN, DIM, False)
        self.linear(b + "ffn_up", FFN, DIM, plain)
        self.linear(b + "ffn_down", DIM, FFN, plain)
        if a == "gemma3":
            self.norm(b + "post_ffw_norm", DIM)
        if self.bert:
            self.norm(b + "layer_output_norm", DIM)

    def write(self, untied, divisors):
        layers = LAYERS.get(self.architecture, 2)
        self.metadata(layers)
        self.tensor("token_embd.weight", VOCABULARY, DIM, scale=0.5)
        if untied:
            self.tensor("output.weight", VOCABULARY, DIM)
        if divisors:
            self.file.add_tensor("rope_freqs.weight", ROPE_DIVISORS)
        if self.plain:
            self.tensor("position_embd.weight", CONTEXT, DIM, scale=0.5)
        if self.bert:
            self.tensor("token_types.weight", 2, DIM)
        self.norm("token_embd_norm" if self.bert else "output_norm", DIM)
        for index in range(layers):
            self.layer(index)
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def logits(path):
    model = llama_cpp.Llama(str(path), n_ctx=32, logits_all=True, verbose=False, n_threads=1, flash_attn=False,
                            type_k=0, type_v=0)  # 0: a float32 cache
    model.eval(ids)
    return np.array(model.scores[:len(ids)], np.float64)


def embedding(path):
    model = llama_cpp.Llama(str(path), n_ctx=32, embedding=True, verbose=False, n_threads=1, flash_attn=False)
    batch = llama_cpp.llama_batch_init(32, 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    llama_cpp.llama_encode(model._ctx.ctx, batch)
    pooled = llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)
    vector = np.array([[pooled[i] for i in range(DIM)]], np.float64)
    return vector / np.linalg.norm(vector)


FOLDER.mkdir(exist_ok=True)
found = {"ids": ids}
for name in ("llama", "llama_divisors", "gemma3", "qwen2", "qwen3", "gpt2", "bert"):
    path = FOLDER / f"{name}.gguf"
    Writer(path, name.split("_")[0]).write(untied=name == "llama", divisors=name == "llama_divisors")
    rows = embedding(path) if name == "bert" else logits(path)
    found[name] = [[float(f"{x:.7g}") for x in row] for row in rows]
(FOLDER / "llama_cpp.json").write_text(json.dumps(found).replace("]], ", "]],\n") + "\n")
