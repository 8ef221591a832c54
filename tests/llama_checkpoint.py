"""A Llama checkpoint in float32, made up: for what a model's sizes decide, its speed and its memory."""
import json
import struct


def write(folder, block, *, layers, dim, heads, kv_heads, head_dim, ffn, vocabulary, context):
    """config.json and model.safetensors in `folder`; the weights are `block` (an array of floats) over and over."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": dim,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "head_dim": head_dim, "intermediate_size": ffn, "vocab_size": vocabulary, "rms_norm_eps": 1e-5,
              "max_position_embeddings": context, "rope_theta": 10000.0, "tie_word_embeddings": True,
              "hidden_act": "silu", "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [vocabulary, dim], "model.norm.weight": [dim]}
    of_layer = {"self_attn.q_proj": [heads * head_dim, dim], "self_attn.k_proj": [kv_heads * head_dim, dim],
                "self_attn.v_proj": [kv_heads * head_dim, dim], "self_attn.o_proj": [dim, heads * head_dim],
                "mlp.gate_proj": [ffn, dim], "mlp.up_proj": [ffn, dim], "mlp.down_proj": [dim, ffn],
                "input_layernorm": [dim], "post_attention_layernorm": [dim]}
    for layer in range(layers):
        shapes.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()})
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for first in range(0, at // 4, len(block)):
            block[:min(len(block), at // 4 - first)].tofile(file)
