#!/usr/bin/env python3
"""Sets the time that `polyhead plan --here` predicts for this machine beside the time that a run takes.

SmolLM2 by default: prefill and a decode step after 512, 1,024 and 2,048 tokens, on one thread and on all, with the
weights as they are in the file, in bfloat16, and (a model of the same sizes, made here) in float32. What is predicted
comes from kernels timed one by one at the model's sizes; what is measured, from the model itself, in the same process.
Measures and never asserts; a line outside 25 % is marked. See bench/README.md.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITHIN = 0.25
SMOLLM2 = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 30,
           "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536,
           "vocab_size": 49152, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "rope_theta": 100000.0,
           "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float32"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the program polyhead is")
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a name that scripts/get-model knows")
    parser.add_argument("--contexts", default="512,1024,2048")
    parser.add_argument("--threads", default="", help="a list (default: 1 and all)")
    parser.add_argument("--weights", default="file,bf16,f32", help="a list of file, bf16, f32")
    parser.add_argument("--json", action="store_true", help="JSON on stdout in place of the table")
    return parser.parse_args()


def write_float32(folder):
    """SmolLM2's sizes in float32, random numbers: speed does not depend on what the weights are."""
    (folder / "config.json").write_text(json.dumps(SMOLLM2))
    dim, ffn, kv = 576, 1536, 192
    shapes = {"model.embed_tokens.weight": [49152, dim], "model.norm.weight": [dim]}
    for layer in range(30):
        for name, shape in {"self_attn.q_proj": [dim, dim], "self_attn.k_proj": [kv, dim],
                            "self_attn.v_proj": [kv, dim], "self_attn.o_proj": [dim, dim], "mlp.gate_proj": [ffn, dim],
                            "mlp.up_proj": [ffn, dim], "mlp.down_proj": [dim, ffn], "input_layernorm": [dim],
                            "post_attention_layernorm": [dim]}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = random.Random(3)
    block = array("f", (generator.uniform(-0.05, 0.05) for _ in range(1 << 18)))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for first in range(0, at // 4, len(block)):
            block[:min(len(block), at // 4 - first)].tofile(file)
    return str(folder)


def run(options, model, weights, context, threads):
    command = [options.build / "polyhead", "plan", model, "--context", str(context), "--here", "--measure", "--json",
               "--threads", str(threads)]
    if weights == "bf16":
        command += ["--weight-type", "bf16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    plan = json.loads(done.stdout)
    case, measured = plan["cases"][0], plan["measured"]
    row = {"weights": weights, "context": context, "threads": threads}
    for part, phase in (("prefill", "prefill"), ("decode", "decode_step")):
        predicted, took = case[phase]["time"]["predicted_seconds"], measured[part + "_seconds"]
        row[part] = {"predicted": predicted, "measured": took, "ratio": predicted / took}
    row["memory"] = {"predicted": case["memory_bytes"], "measured": measured["resident_bytes"],
                     "ratio": case["memory_bytes"] / max(1, measured["resident_bytes"])}
    return row


def main():
    options = parse_arguments()
    cores = len(os.sched_getaffinity(0))
    threads = [int(n) for n in options.threads.split(",") if n] or sorted({1, cores})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for weights in options.weights.split(","):
            model = write_float32(Path(folder)) if weights == "f32" else options.model
            for count in threads:
                for context in options.contexts.split(","):
                    rows.append(run(options, model, weights, int(context), count))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'weights':8}{'threads':>8}{'tokens':>8}" + "".join(
        f"{part + ' ms':>13}{'predicted':>11}{'ratio':>7}" for part in ("prefill", "decode")) + f"{'memory':>9}")
    for row in rows:
        line = f"{row['weights']:8}{row['threads']:>8}{row['context']:>8}"
        for part in ("prefill", "decode"):
            one = row[part]
            line += f"{1e3 * one['measured']:>13.2f}{1e3 * one['predicted']:>11.2f}{one['ratio']:>7.2f}"
        off = any(abs(row[part]["ratio"] - 1) > WITHIN for part in ("prefill", "decode"))
        print(line + f"{row['memory']['ratio']:>9.3f}" + ("   beyond 25 %" if off else ""))


if __name__ == "__main__":
    main()
