#!/usr/bin/env python3
"""Tiny models with random weights, one for each architecture without real weights among the tests (and a Gemma and a BERT
beside those), and what transformers computes with them: tests/data/tiny/NAME/{config.json, model.safetensors,
expected.json}.

  python3 -m pip install -r bench/requirements.txt && python3 tests/make/tiny_models.py [NAME...]

Eager attention in float32. Weights are rounded to bfloat16 first, so that the files are small and lose nothing.
"""
import json
import pathlib
import sys

import torch
import transformers
from transformers import (BertConfig, BertModel, Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel,
                          LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "tiny"
TOKENS = 40
QUERIES = (0, 9, TOKENS - 1)  # whose rows of weights are kept

SIZES = dict(vocab_size=80, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False)

# NAME: (model class, configuration)
MODELS = {
    # More key/value heads than one, frequencies of all three kinds within 40 positions, sizes that fill no vector.
    "llama3": (LlamaForCausalLM, LlamaConfig(**SIZES, head_dim=10, rope_parameters=dict(
        rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16))),
    # Up to the original length, 48 of 96 positions: the short factors, and cos and sin times a factor.
    "longrope": (LlamaForCausalLM, LlamaConfig(**{**SIZES, "max_position_embeddings": 96}, head_dim=8, rope_parameters=dict(
        rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.1, 1.5, 2.25], long_factor=[1.0, 2.0, 4.0, 8.0],
        original_max_position_embeddings=48))),
    "dynamic": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=dict(
        rope_type="dynamic", rope_theta=100.0, factor=4.0))),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=7, head_dim=6)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**{**SIZES, "tie_word_embeddings": True})),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**{**SIZES, "num_attention_heads": 6}, head_dim=8)),
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=80, n_embd=24, n_head=3, n_layer=2, n_positions=48)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 3, "num_key_value_heads": 1, "tie_word_embeddings": True}, head_dim=8,
        sliding_window=8, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        query_pre_attn_scalar=12, final_logit_softcapping=3.0, rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=2.0),
            sliding_attention=dict(rope_type="default", rope_theta=50.0)))),
    "bert": (BertModel, BertConfig(vocab_size=80, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                   num_attention_heads=3, max_position_embeddings=48)),
}


def randomise(model):
    """Weights that make attention and the norms uneven, biases and norms' weights included."""
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                scale = 1.0 if "embed" in name or "wte" in name else 2.0 / weight.shape[-1]**0.5
                weight.copy_(noise * scale)
            elif "norm" in name.lower() or ".ln_" in name:
                weight.copy_(weight + 0.3 * noise)
            else:
                weight.copy_(0.3 * noise)
            weight.copy_(weight.to(torch.bfloat16).to(torch.float32))


def figures(values):
    return [float(f"{value:.8g}") for value in values]


def expected(model, decoder):
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 80, (1, TOKENS), generator=generator)
    with torch.no_grad():
        out = model(ids, output_attentions=True)
    heads = []
    for layer, weights in enumerate(out.attentions):
        for head, rows in enumerate(weights[0].double()):
            entropy = -(rows * rows.clamp_min(1e-300).log()).sum(-1).mean()
            heads.append({"layer": layer, "head": head, "mean_entropy": float(entropy),
                          "rows": {str(q): [round(float(w), 7) for w in rows[q]] for q in QUERIES}})
    result = {"transformers": transformers.__version__, "ids": ids[0].tolist(), "heads": heads}
    if decoder:
        logits = out.logits[0]
        losses = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[0, 1:], reduction="mean")
        result["nll"] = float(losses)
        result["logits"] = {str(q): figures(logits[q].tolist()) for q in QUERIES}
    else:
        states = out.last_hidden_state[0].double()
        for name, vector in (("mean", states.mean(0)), ("first", states[0])):
            result[name] = figures((vector / vector.norm()).tolist())
    return result


def save(name, model, decoder):
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    result = expected(model, decoder)
    (folder / "expected.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")
    model.to(torch.bfloat16).save_pretrained(folder)  # exact: see randomise
    for extra in ("generation_config.json", "README.md"):
        (folder / extra).unlink(missing_ok=True)


for name, (kind, config) in MODELS.items():
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    config.dtype = "float32"
    model = kind(config, add_pooling_layer=False) if kind is BertModel else kind(config)
    model.eval()
    randomise(model)
    save(name, model, kind is not BertModel)
    sizes = {path.name: path.stat().st_size for path in sorted((FOLDER / name).iterdir())}
    print(name, sizes)
