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
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import llama_checkpoint  # pylint: disable=wrong-import-position

WITHIN = 0.25
SMOLLM2 = {"layers": 30, "dim": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "ffn": 1536, "vocabulary": 49152,
           "context": 8192}


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
    generator = random.Random(3)
    block = array("f", (generator.uniform(-0.05, 0.05) for _ in range(1 << 18)))
    llama_checkpoint.write(folder, block, **SMOLLM2)
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
