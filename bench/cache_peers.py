#!/usr/bin/env python3
"""Times one decoding step over a KV cache beside ONNX Runtime (GroupQueryAttention) and llama.cpp (ggml's flash attention).

The same shape for all: one query token, KV heads of 128 dims, `--keys` keys. Polyhead is the program's own case
(`polyhead bench --filter '^cache ...'`, one process a round, which measures this machine's DRAM read rate too); the peers
run in this process, through onnxruntime and through the ggml libraries that llama-cpp-python brings. All contestants
take turns in every round; medians of the rounds. A ratio is peer time / Polyhead's for the cache of the same width:
above 1 Polyhead is faster. Every peer's result is compared with a plain softmax first. Measures and never asserts: the
exit status says only whether it ran and all results agreed. See bench/README.md.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from peers import FLAG_BELOW, interleaved, pin

ROOT = Path(__file__).resolve().parent.parent
KEYS, KV_HEADS, DIM = 16384, 8, 128  # as the program's cases have them
ROUND_SECONDS, SAMPLE_SECONDS = 0.2, 0.02
# Of the largest difference by the largest magnitude. Outputs are means over thousands of keys, some hundredths; one scale
# for a whole tensor of standard normal numbers makes steps of 0.04, whose errors are averaged alike: about 0.02.
TOLERANCE = 0.05


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the program polyhead is")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--groups", default="4,8", help="query heads of each KV head (default 4,8)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--filter", default="", help="only peers whose name matches this regular expression")
    parser.add_argument("--json", action="store_true", help="JSON on stdout in place of the table")
    return parser.parse_args()


class Arrays:
    """One set of inputs, and what attention makes of them in float64."""

    def __init__(self, group):
        random = np.random.default_rng(1)
        self.heads = group * KV_HEADS
        self.q = random.standard_normal((self.heads, DIM), np.float32)
        self.k, self.v = (random.standard_normal((KV_HEADS, KEYS, DIM), np.float32) for _ in "kv")
        scores = np.einsum("hgd,hkd->hgk", self.q.reshape(KV_HEADS, group, DIM), self.k) / np.sqrt(DIM)
        weights = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
        self.out = (weights @ self.v / weights.sum(-1, keepdims=True)).reshape(self.heads, DIM)


class Onnx:
    """GroupQueryAttention with its cache [batch, kv_heads, keys, dim] in place; each call appends the newest token."""

    def __init__(self, arrays, threads, element):
        from onnx_operator import run_operator
        self.name, self.beside = f"ONNX GroupQueryAttention {element}", element
        coded = element == "int8"
        activation = np.float32 if coded else np.dtype(element)
        scale = np.float32(max(np.abs(arrays.k).max(), np.abs(arrays.v).max()) / 127)  # one a tensor

        def cache(values):
            held = np.rint(values / scale).astype(np.int8) if coded else values.astype(activation)
            return held[None]

        def new(values):
            return np.ascontiguousarray(values[:, -1]).astype(activation).reshape(1, 1, -1)

        k, v = cache(arrays.k), cache(arrays.v)
        self.out = np.empty((1, 1, arrays.heads * DIM), activation)
        inputs = {"query": arrays.q.astype(activation).reshape(1, 1, -1), "key": new(arrays.k), "value": new(arrays.v),
                  "past_key": k, "past_value": v, "seqlens_k": np.full(1, KEYS - 1, np.int32),
                  "total_sequence_length": np.array([KEYS], np.int32)}
        attributes = {"num_heads": arrays.heads, "kv_num_heads": KV_HEADS}
        if coded:
            gap = ("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink")
            inputs.update(dict.fromkeys(gap), k_scale=np.full(1, scale), v_scale=np.full(1, scale))
            attributes.update(kv_cache_bit_width=8, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")
        self.run = run_operator("GroupQueryAttention", attributes, inputs,
                                {"output": self.out, "present_key": k, "present_value": v}, threads)

    def result(self):
        return self.out.reshape(-1, DIM)


class LlamaCpp:
    """ggml's flash attention over keys and values laid out as llama.cpp's cache is: token after token, all heads."""

    def __init__(self, arrays, threads, element):
        from ggml_ctypes import FlashAttention
        self.name, self.beside = f"llama.cpp {element}", {"f16": "float16", "q8_0": "int8"}[element]
        tokens_first = [np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (arrays.k, arrays.v)]
        self.attention = FlashAttention(arrays.q, *tokens_first, element, threads)
        self.run, self.result = self.attention.run, self.attention.result


def polyhead_round(options, group):
    """{cache type: seconds of a step} and the DRAM rate, by one run of the program."""
    name = f"cache {8 * group}/8 heads"
    done = subprocess.run([options.build / "polyhead", "bench", "--filter",
                           f"^{name} (float32|float16|bfloat16|int8) kv={KEYS}$", "--json", "--threads",
                           str(options.threads)], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    seconds = {case["name"][len(name) + 1:].split()[0]: case["median_seconds"] for case in report["cases"]}
    return seconds, report["ceilings"]["dram_gbps"]


def contestants(arrays, options):
    makers = [(Onnx, element) for element in ("float32", "float16", "int8")] + \
        [(LlamaCpp, element) for element in ("f16", "q8_0")]
    made = []
    for maker, element in makers:
        if not re.search(options.filter, f"{maker.__name__} {element}"):
            continue
        try:
            peer = maker(arrays, options.threads, element)
            peer.run()
        except Exception as error:  # a peer that lacks a type says so by an exception of its own
            print(f"{maker.__name__} {element}: left out: {str(error).strip().splitlines()[0][:160]}", file=sys.stderr)
            continue
        made.append(peer)
    return made


def run_group(options, group):
    arrays = Arrays(group)
    peers = contestants(arrays, options)
    ours, drams, theirs = [], [], [[] for _ in peers]
    for _ in range(options.rounds):
        seconds, dram = polyhead_round(options, group)
        ours.append(seconds)
        drams.append(dram)
        for times, peer in zip(theirs, peers):
            times.extend(interleaved([peer.run], round(ROUND_SECONDS / SAMPLE_SECONDS), SAMPLE_SECONDS)[0])
    rows = []
    for peer, times in zip(peers, theirs):
        difference = float(np.max(np.abs(peer.result() - arrays.out)) / np.max(np.abs(arrays.out)))
        polyhead = statistics.median(seconds[peer.beside] for seconds in ours)
        taken = statistics.median(times)
        rows.append({"group": group, "threads": options.threads, "peer": peer.name, "beside": peer.beside,
                     "polyhead_seconds": polyhead, "peer_seconds": taken, "ratio": taken / polyhead,
                     "dram_gbps": statistics.median(drams), "difference": difference,
                     "agrees": difference <= TOLERANCE, "slower": taken / polyhead < FLAG_BELOW})
    return rows


def print_row(row):
    notes = (" SLOWER" if row["slower"] else "") + ("" if row["agrees"] else f" DISAGREES by {row['difference']:.2g}")
    print(f"{8 * row['group']:>3}/8 {row['threads']:>2}  {row['beside']:<10} {1e3 * row['polyhead_seconds']:>8.3f}  "
          f"{row['peer']:<36} {1e3 * row['peer_seconds']:>8.3f} {row['ratio']:>6.2f}{notes}", flush=True)


def main():
    options = parse_arguments()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    pin(options.threads)
    rows = []
    if not options.json:
        print(f"heads  t  cache     polyhead ms  {'peer':<36}  peer ms  ratio   ({KEYS} keys of {DIM} dims)")
    for group in (int(group) for group in options.groups.split(",")):
        for row in run_group(options, group):
            rows.append(row)
            if not options.json:
                print_row(row)
    if options.json:
        print(json.dumps(rows, indent=1))
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
