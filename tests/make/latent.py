#!/usr/bin/env python3
"""Makes tests/data/latent.safetensors: DeepseekV3Attention of transformers on random weights, float32 on the CPU.

Needs torch, transformers and safetensors:  python tests/make/latent.py tests/data/latent.safetensors
"""
import sys

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

TOKENS = 23


def main(path):
    torch.manual_seed(7)
    config = DeepseekV3Config(
        hidden_size=32, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=16,
        qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, max_position_embeddings=64, attention_bias=False,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
                         "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16},
        rope_interleave=True)
    config._attn_implementation = "eager"
    attention = deepseek.DeepseekV3Attention(config, 0).float().eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5 if parameter.dim() > 1
                            else 1 + 0.2 * torch.randn_like(parameter))
        x = torch.randn(1, TOKENS, config.hidden_size)
        cos_sin = deepseek.DeepseekV3RotaryEmbedding(config)(x, torch.arange(TOKENS)[None])
        mask = torch.full((TOKENS, TOKENS), float("-inf")).triu(1)[None, None]
        y, _ = attention(x, cos_sin, mask)
    tensors = {name: value.contiguous() for name, value in attention.state_dict().items()}
    tensors |= {"x": x[0].contiguous(), "y": y[0].contiguous(), "scale": torch.tensor([attention.scaling])}
    save_file(tensors, path)


main(sys.argv[1])
