#!/usr/bin/env python3
"""Makes tests/data/weight_types.safetensors: blocks of every quantised type and what they mean, by the package `gguf`.

  python3 -m pip install -r bench/requirements.txt && tests/make/weight_types.py
"""
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

BLOCKS = 3
# type: where in a block its float16 numbers lie; all else is any bytes
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

random = np.random.default_rng(2026)
tensors = {}
for name, halves in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in halves:
        scale = random.normal(0, 0.05, BLOCKS).astype(np.float16)
        scale[-1] = np.float16(3e-6)  # subnormal
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(BLOCKS, 2)
    tensors[name + ".blocks"] = blocks
    tensors[name + ".values"] = gguf.quants.dequantize(blocks, kind).astype(np.float32).reshape(BLOCKS, weights)
save_file(tensors, pathlib.Path(__file__).parent.parent / "data" / "weight_types.safetensors")
