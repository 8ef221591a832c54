#!/usr/bin/env python3
"""The planner's memory against what a run of the program takes: `plan --here --measure` on a model made here, and on
real ones where they are."""

import json
import os
import struct
import subprocess
import tempfile
import unittest
from array import array
from pathlib import Path

PROGRAM = os.environ.get("POLYHEAD_PROGRAM", "build/polyhead")
WITHIN = 0.05
LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 8, 512, 8, 2, 64, 1536, 20000


def write_model(folder):
    """A Llama of float32 with one value throughout: what its weights are changes no byte."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": DIM,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
              "head_dim": HEAD_DIM, "intermediate_size": FFN, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": True,
              "hidden_act": "silu", "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [VOCABULARY, DIM], "model.norm.weight": [DIM]}
    for layer in range(LAYERS):
        of = lambda name, layer=layer: f"model.layers.{layer}.{name}.weight"
        shapes.update({of("self_attn.q_proj"): [HEADS * HEAD_DIM, DIM], of("self_attn.k_proj"): [KV_HEADS * HEAD_DIM, DIM],
                       of("self_attn.v_proj"): [KV_HEADS * HEAD_DIM, DIM], of("self_attn.o_proj"): [DIM, HEADS * HEAD_DIM],
                       of("mlp.gate_proj"): [FFN, DIM], of("mlp.up_proj"): [FFN, DIM], of("mlp.down_proj"): [DIM, FFN],
                       of("input_layernorm"): [DIM], of("post_attention_layernorm"): [DIM]})
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        block = array("f", [0.01]) * (1 << 20)
        for first in range(0, at // 4, len(block)):
            block[:min(len(block), at // 4 - first)].tofile(file)


class Memory(unittest.TestCase):
    def measured(self, *arguments):
        done = subprocess.run([PROGRAM, "plan", *arguments, "--here", "--measure", "--json"], capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        case, run = plan["cases"][0], plan["measured"]
        if run["resident_bytes"] <= 0:
            self.skipTest("the system does not say what is resident")
        self.assertAlmostEqual(case["weight_bytes"] / run["weight_bytes"], 1, delta=0.02)
        self.assertEqual(case["kv_cache_bytes"], run["cache_bytes"])
        self.assertAlmostEqual(case["memory_bytes"] / run["resident_bytes"], 1, delta=WITHIN, msg=str(arguments))

    def test_a_model_made_here(self):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder))
            self.measured(folder, "--context", "1024")
            self.measured(folder, "--context", "1024", "--weight-type", "bf16")

    def test_real_models(self):
        names = ["smollm2", "gemma3"]
        folder = os.environ.get("POLYHEAD_MODELS", str(Path.home() / ".cache" / "polyhead" / "models"))
        if not list(Path(folder).glob("*.gguf")) and "POLYHEAD_MODELS" not in os.environ:
            self.skipTest("no model here (scripts/get-model smollm2)")
        for name in names:
            self.measured(name, "--context", "1024")
        self.measured("smollm2", "--context", "512", "--weight-type", "bf16", "--threads", "1")


if __name__ == "__main__":
    unittest.main()
