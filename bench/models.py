#!/usr/bin/env python3
"""Times whole models: Polyhead beside llama.cpp on the same GGUF file and transformers in float32, same ids and threads.

Prefill of 2,048 tokens, the same with the entropy of every row of every head ("look"; Polyhead gathers its other
statistics too) and a token after 1,024 of SmolLM2; 64 texts of 128 tokens through MiniLM; the whole command `polyhead
look` beside `polyhead generate` of one token. All contestants take turns in every round (one process each at a time;
Polyhead through `polyhead bench --model`, which measures this machine's ceilings beside it); medians of the rounds. A
ratio is peer time / Polyhead's float32 time: above 1 Polyhead is faster. Measures and never asserts. See
bench/README.md.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREFILL, CONTEXT, STEPS = 2048, 1024, 16
PARTS = ("prefill", "look", "decode", "embed", "whole")
TEXTS, TEXT_TOKENS = 64, 128


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the program polyhead is")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="comma-separated parts of the names of contestants")
    parser.add_argument("--json", action="store_true", help="JSON on stdout in place of the tables")
    return parser.parse_args()


def model_path(name):
    done = subprocess.run([ROOT / "scripts/get-model", name], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip().splitlines()[-1])


def ids(count, vocabulary=20000):
    chance = random.Random(1)
    return [chance.randrange(1000, vocabulary) for _ in range(count)]


def seconds_of(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Polyhead:
    """A fresh process a round: `polyhead bench --model`."""

    def __init__(self, options, model, weights):
        self.name = f"Polyhead, {weights}"
        self.command = [options.build / "polyhead", "bench", "--model", model, "--weights", weights, "--json",
                        "--seconds", "0.1", "--threads", str(options.threads)]

    def round(self):
        done = subprocess.run(self.command, capture_output=True, text=True, check=True)
        result = json.loads(done.stdout)
        figures = {"load": result["load_seconds"]}
        for part in PARTS:
            if part in result:
                figures[part] = result[part]["seconds"]
                figures.update({f"{part} {key}": result[part][key] for key in ("share", "weights_share", "of_plain")
                                if key in result[part]})
        return figures


class Program:
    """A whole command on a text of PREFILL tokens, from its start to its end."""

    def __init__(self, options, model, name, *arguments):
        self.name = f"polyhead {name}"
        program = options.build / "polyhead"
        source = "".join((ROOT / f"docs/{name}.md").read_text() for name in ("numerics", "caches", "cost"))
        told = subprocess.run([program, "tokenize", model, "--file", "-", "--json"], capture_output=True, text=True, check=True,
                              input=source.encode("ascii", "ignore").decode())
        pieces = "".join(json.loads(told.stdout)["pieces"][:PREFILL])
        self.text = pieces.translate({ord("Ġ"): " ", ord("Ċ"): "\n", ord("ĉ"): "\t"})
        self.command = [program, name, model, "--threads", str(options.threads), *arguments]

    def round(self):
        return {"whole": seconds_of(lambda: subprocess.run(self.command, input=self.text, capture_output=True, text=True,
                                                           check=True))}


class LlamaCpp:
    def __init__(self, options, model, flash):
        self.name = f"llama.cpp, flash attention {'on' if flash else 'off'}"
        from llama_cpp import Llama
        self.load = seconds_of(lambda: setattr(self, "llama", Llama(
            str(model), n_ctx=4096, n_batch=PREFILL, n_threads=options.threads, n_threads_batch=options.threads,
            flash_attn=flash, verbose=False)))

    def run(self, tokens):
        self.llama.eval(tokens)

    def round(self):
        self.llama.reset()
        prefill = seconds_of(lambda: self.run(ids(PREFILL)))
        self.llama.reset()
        self.run(ids(CONTEXT))
        steps = [seconds_of(lambda one=one: self.run([one])) for one in ids(STEPS)]
        return {"load": self.load, "prefill": prefill, "decode": statistics.median(steps)}


class Transformers:
    """SmolLM2's configuration in float32. Speed does not depend on what the weights are: they are random where the
    package `gguf`, which reads them from the file, is not installed."""

    def __init__(self, options, model, attention):
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
        torch.set_num_threads(options.threads)
        self.name, self.torch, self.eager = f"transformers, {attention}", torch, attention == "eager"
        try:
            import gguf  # noqa: F401
            self.model = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32,
                                                              attn_implementation=attention)
        except ImportError:
            self.model = LlamaForCausalLM(LlamaConfig(
                vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
                attn_implementation=attention))
        self.model.eval()

    def run(self, tokens, cache=None):
        with self.torch.inference_mode():
            return self.model(self.torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)

    def look(self):
        """Every row's entropy in every head, from the weights that eager attention returns."""
        with self.torch.inference_mode():
            result = self.model(self.torch.tensor([ids(PREFILL)]), use_cache=True, logits_to_keep=1,
                                output_attentions=True)
            return [self.torch.special.entr(weights).sum(-1) for weights in result.attentions]

    def round(self):
        figures = {"prefill": seconds_of(lambda: self.run(ids(PREFILL)))}
        if self.eager:
            figures["look"] = seconds_of(self.look)
        cache = self.run(ids(CONTEXT)).past_key_values
        steps = [seconds_of(lambda one=one: self.run([one], cache)) for one in ids(STEPS)]
        return {**figures, "decode": statistics.median(steps)}


class Encoder:
    def __init__(self, options, model, attention):
        import torch
        from transformers import AutoModel
        torch.set_num_threads(options.threads)
        self.name, self.torch = f"transformers, {attention}", torch
        self.model = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation=attention).eval()
        self.batch = torch.tensor([ids(TEXT_TOKENS)] * TEXTS)

    def embed(self):
        with self.torch.inference_mode():
            pooled = self.model(self.batch).last_hidden_state.mean(1)
            return self.torch.nn.functional.normalize(pooled)

    def round(self):
        return {"embed": seconds_of(self.embed)}


def contestants(options):
    smollm, minilm = model_path("smollm2"), model_path("minilm")
    makers = [
        ("SmolLM2", "Polyhead f32", lambda: Polyhead(options, smollm, "f32")),
        ("SmolLM2", "Polyhead bf16", lambda: Polyhead(options, smollm, "bf16")),
        ("SmolLM2", "llama.cpp flash", lambda: LlamaCpp(options, smollm, True)),
        ("SmolLM2", "llama.cpp", lambda: LlamaCpp(options, smollm, False)),
        ("SmolLM2", "transformers sdpa", lambda: Transformers(options, smollm, "sdpa")),
        ("SmolLM2", "transformers eager", lambda: Transformers(options, smollm, "eager")),
        ("whole command", "polyhead generate", lambda: Program(options, smollm, "generate", "--prompt", "-",
                                                                "--max-tokens", "1")),
        ("whole command", "polyhead look", lambda: Program(options, smollm, "look", "-", "--json")),
        ("MiniLM", "Polyhead f32", lambda: Polyhead(options, minilm, "f32")),
        ("MiniLM", "Polyhead bf16", lambda: Polyhead(options, minilm, "bf16")),
        ("MiniLM", "transformers sdpa", lambda: Encoder(options, minilm, "sdpa")),
        ("MiniLM", "transformers eager", lambda: Encoder(options, minilm, "eager")),
    ]
    wanted = [part for part in options.only.split(",") if part]
    return [(model, make()) for model, name, make in makers
            if not wanted or any(part in f"{model} {name}" for part in wanted)]


def medians(rounds):
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def print_table(model, rows):
    ours = next((figures for name, figures in rows if name == "Polyhead, f32"), rows[0][1])
    parts = [part for part in PARTS if any(part in figures for _, figures in rows)]
    print(f"\n{model:<36}" + "".join(f"{part + ' ms':>14}{'ratio':>8}" for part in parts))
    for name, figures in rows:
        line = f"{name:<36}"
        for part in parts:
            known = part in figures
            line += f"{1e3 * figures[part]:>14.2f}" if known else f"{'-':>14}"
            line += f"{figures[part] / ours[part]:>8.2f}" if known and part in ours else f"{'-':>8}"
        notes = [f"{part} {100 * figures[f'{part} share']:.0f} % of the ceiling, counting products of weights alone "
                 f"{100 * figures[f'{part} weights_share']:.0f} %" for part in parts if f"{part} share" in figures]
        notes += [f"look {figures['look of_plain']:.2f} times the plain run"] if "look of_plain" in figures else []
        print(line + ("   " + "; ".join(notes) if notes else ""))


def main():
    options = parse_arguments()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:options.threads]))
    entrants = contestants(options)
    results = [(model, entrant.name, []) for model, entrant in entrants]
    for round_number in range(options.rounds + 1):  # the first pays for pages and clocks, and is dropped
        for (_, entrant), (_, name, rounds) in zip(entrants, results):
            if sys.stderr.isatty():
                print(f"\r\033[Kround {round_number}: {name}", end="", file=sys.stderr, flush=True)
            figures = entrant.round()
            if round_number > 0:
                rounds.append(figures)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    table = [{"model": model, "name": name, "threads": options.threads, **medians(rounds)}
             for model, name, rounds in results]
    if options.json:
        print(json.dumps(table, indent=1))
        return
    for model in dict.fromkeys(model for model, _, _ in results):
        print_table(model, [(name, medians(rounds)) for which, name, rounds in results if which == model])


if __name__ == "__main__":
    main()
