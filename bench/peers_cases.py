"""The cases of bench/peers.py: what is computed, by Polyhead and by each peer, on which arrays."""
import ctypes
from dataclasses import dataclass, field
from typing import Callable

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F

import polyhead_ctypes as ph
from onnx_operator import run_operator

# How far two right results may lie apart, |a - b| / max(1, |a|), for standard normal inputs: float32 scores and sums
# err by some tens of eps (1.2e-7); 16-bit outputs by an ulp each way, two ulps of 2^-10 or 2^-7 in all, which also
# covers peers that round P to 16 bits, as those errors average out over the keys.
TOLERANCES = {"float32": 1e-5, "float16": 2**-9, "bfloat16": 2**-6}
BOUNDS = {"float32": "float32_gflops", "float16": "float32_gflops", "bfloat16": "bfloat16_gflops"}


@dataclass
class Pair:
    """One peer's run and Polyhead's on the same arrays; `work` in flops or bytes, the same for both."""
    peer: str
    work: float
    ours: Callable
    our_result: Callable
    theirs: Callable
    their_result: Callable


@dataclass
class Case:
    name: str
    bound: str  # the ceiling that shares are of
    tolerance: float
    pairs: list = field(default_factory=list)


class Session:
    """The three libraries, each at `threads` threads."""

    def __init__(self, library, threads):
        self.threads = threads
        self.polyhead = ph.Polyhead(library, threads)
        torch.set_num_threads(threads)
        self.random = np.random.default_rng(1)

    def versions(self):
        library = self.polyhead.lib
        library.polyhead_version.restype = ctypes.c_char_p
        return {"polyhead": f"{library.polyhead_version().decode()} ({self.polyhead.isa()})",
                "torch": torch.__version__, "onnxruntime": onnxruntime.__version__}

    def normal(self, element, *shape):
        """Standard normal numbers as `element`; bfloat16 as its bits."""
        array = self.random.standard_normal(shape, np.float32)
        if element == "bfloat16":
            return torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
        return array.astype(element)

    def onnx(self, operator, attributes, inputs, outputs):
        return run_operator(operator, attributes, inputs, outputs, self.threads)


def as_torch(array):
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == ph.BFLOAT16_STORAGE else tensor


def as_float(array):
    """Any element type as float32."""
    return as_torch(array).to(torch.float32).numpy() if isinstance(array, np.ndarray) else \
        array.to(torch.float32).numpy()


def tokens_first(array):
    """[batch, heads, tokens, dim] as Polyhead's [batch, tokens, heads, dim]: other strides, the same memory."""
    return array.transpose(0, 2, 1, 3)


@dataclass
class Shape:
    element: str
    batch: int
    q_len: int
    kv_len: int
    q_heads: int
    kv_heads: int
    dim: int
    causal: bool = False
    mask: str = ""  # "", "boolean" or "bias": a dense one, [1, 1, q_len, kv_len]

    def flops(self):
        """Useful ones: a causal call's triangle (its whole rows where the queries are the last of many keys)."""
        pairs = self.q_len * self.kv_len
        if self.causal:
            pairs -= self.q_len * (self.q_len - 1) // 2
        return 4 * self.batch * self.q_heads * pairs * self.dim

    def kv_bytes(self):
        size = 4 if self.element == "float32" else 2
        return 2 * self.batch * self.kv_len * self.kv_heads * self.dim * size


def torch_pair(session, shape, work):
    """scaled_dot_product_attention on dense [batch, heads, tokens, dim]. Its is_causal is aligned at the start, so with
    fewer queries than keys it is compared without a mask."""
    causal = shape.causal and shape.q_len == shape.kv_len
    q = session.normal(shape.element, shape.batch, shape.q_heads, shape.q_len, shape.dim)
    k, v = (session.normal(shape.element, shape.batch, shape.kv_heads, shape.kv_len, shape.dim) for _ in "kv")
    out = np.empty_like(q)
    ours, theirs = {}, {}
    if causal:
        ours["mask"] = ph.Mask(causal=1, align=ph.ALIGN_START)
    if shape.mask:
        ours_mask, visible, bias = dense_mask(session, shape)
        ours.update(ours_mask)
        theirs["attn_mask"] = torch.from_numpy(visible if shape.mask == "boolean" else bias)
    tensors = [as_torch(array) for array in (q, k, v)]
    results = {}

    def run():
        with torch.inference_mode():
            results["out"] = F.scaled_dot_product_attention(*tensors, is_causal=causal,
                                                            enable_gqa=shape.q_heads != shape.kv_heads, **theirs)

    run_ours = session.polyhead.attention(*(tokens_first(array) for array in (q, k, v, out)), **ours)
    return Pair("torch SDPA", work, run_ours, lambda: as_float(out), run, lambda: as_float(results["out"]))


def dense_mask(session, shape):
    """A random half of the pairs and the diagonal, as (Polyhead's arguments, booleans, additive bias)."""
    size = (1, 1, shape.q_len, shape.kv_len)
    visible = session.random.random(size) < 0.5
    visible |= np.eye(shape.q_len, shape.kv_len, dtype=bool)
    if shape.mask == "boolean":
        return {"mask": ph.Mask(visible=visible)}, visible, np.where(visible, 0, -np.inf).astype(np.float32)
    bias = session.random.standard_normal(size, np.float32)
    return {"modifiers": ph.Modifiers(bias=bias)}, visible, bias


def onnx_attention_pair(session, shape, work):
    """MultiHeadAttention on [batch, tokens, heads * dim]. A boolean mask is given to it as a bias of 0 and -inf."""
    q = session.normal(shape.element, shape.batch, shape.q_len, shape.q_heads, shape.dim)
    k, v = (session.normal(shape.element, shape.batch, shape.kv_len, shape.kv_heads, shape.dim) for _ in "kv")
    out, their_out = np.empty_like(q), np.empty_like(q)
    ours = {"mask": ph.Mask(causal=1, align=ph.ALIGN_START)} if shape.causal else {}
    bias = None
    if shape.mask:
        ours, _, bias = dense_mask(session, shape)

    def packed(array):
        return array.reshape(*array.shape[:2], -1)

    inputs = {"query": packed(q), "key": packed(k), "value": packed(v)}
    if bias is not None:
        inputs.update({"bias": None, "key_padding_mask": None, "attention_bias": bias})
    run = session.onnx("MultiHeadAttention",
                       {"num_heads": shape.q_heads, "unidirectional": int(shape.causal)}, inputs,
                       {"output": packed(their_out)})
    return Pair("ONNX MultiHeadAttention", work, session.polyhead.attention(q, k, v, out, **ours),
                lambda: as_float(out), run, lambda: as_float(their_out))


def onnx_grouped_pair(session, shape, work):
    """GroupQueryAttention, causal at the end, with its cache [batch, kv_heads, tokens, dim] of kv_len tokens in place.
    Its newest q_len tokens are appended by each call, which Polyhead finds there."""
    q = session.normal(shape.element, shape.batch, shape.q_len, shape.q_heads, shape.dim)
    keys, values = (session.normal(shape.element, shape.batch, shape.kv_heads, shape.kv_len, shape.dim)
                    for _ in "kv")
    new_k, new_v = (np.ascontiguousarray(tokens_first(array[:, :, -shape.q_len:])) for array in (keys, values))
    out, their_out = np.empty_like(q), np.empty_like(q)

    def packed(array):
        return array.reshape(*array.shape[:2], -1)

    total = np.array([shape.kv_len], np.int32)
    run = session.onnx("GroupQueryAttention", {"num_heads": shape.q_heads, "kv_num_heads": shape.kv_heads},
                       {"query": packed(q), "key": packed(new_k), "value": packed(new_v), "past_key": keys,
                        "past_value": values, "seqlens_k": np.full(shape.batch, shape.kv_len - 1, np.int32),
                        "total_sequence_length": total},
                       {"output": packed(their_out), "present_key": keys, "present_value": values})
    mask = ph.Mask(causal=1, align=ph.ALIGN_END)
    ours = session.polyhead.attention(q, tokens_first(keys), tokens_first(values), out, mask=mask)
    return Pair("ONNX GroupQueryAttention", work, ours, lambda: as_float(out), run, lambda: as_float(their_out))


def prefill(shape):
    def make(session, name):
        case = Case(name, BOUNDS[shape.element], TOLERANCES[shape.element])
        case.pairs.append(torch_pair(session, shape, shape.flops()))
        if shape.element == "bfloat16":
            return case  # ONNX Runtime has no bfloat16 on the CPU
        grouped = shape.q_heads != shape.kv_heads
        case.pairs.append((onnx_grouped_pair if grouped else onnx_attention_pair)(session, shape, shape.flops()))
        return case

    return make


def decode(shape):
    def make(session, name):
        case = Case(name, "dram_gbps", TOLERANCES[shape.element])
        case.pairs.append(torch_pair(session, shape, shape.kv_bytes()))
        if shape.element != "bfloat16":
            case.pairs.append(onnx_grouped_pair(session, shape, shape.kv_bytes()))
        return case

    return make


def torch_layer(tokens, model_dim, heads, with_weights):
    """nn.MultiheadAttention, self attention; with weights, those of each head."""
    def make(session, name):
        torch.manual_seed(1)
        module = torch.nn.MultiheadAttention(model_dim, heads, batch_first=True).eval()
        x = session.normal("float32", 1, tokens, model_dim)
        y, their_x = np.empty_like(x), torch.from_numpy(x)
        arrays = [parameter.detach().numpy() for parameter in
                  (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias)]
        config = ph.LayerConfig(model_dim=model_dim, q_heads=heads)
        layer = session.polyhead.layer(config, ph.LayerWeights(**dict(zip(("w_qkv", "b_qkv", "w_o", "b_o"), arrays))))
        results = {}

        def run():
            with torch.inference_mode():
                results["y"], results["weights"] = module(their_x, their_x, their_x, need_weights=with_weights,
                                                          average_attn_weights=False)

        pairs = tokens * tokens * heads
        work = 2 * tokens * model_dim * model_dim * 4 + 4 * pairs * (model_dim // heads)
        if not with_weights:
            ours = session.polyhead.layer_forward(layer, x, y)
            pair = Pair("nn.MultiheadAttention", work, ours, lambda: y, run, lambda: results["y"].numpy())
        else:
            weights = np.empty((1, heads, tokens, tokens), np.float32)
            ours = session.polyhead.layer_with_weights(layer, x, y, weights, heads)

            def both(y, weights):
                return np.concatenate([np.ravel(y), np.ravel(weights)])

            pair = Pair("nn.MultiheadAttention", work, ours, lambda: both(y, weights), run,
                        lambda: both(results["y"].numpy(), results["weights"].numpy()))
        return Case(name, "float32_gflops", TOLERANCES["float32"], [pair])

    return make


def cases():
    """[(name, function of (session, name) that makes the case)]."""
    listed = []
    for element in ("float32", "bfloat16"):
        for causal in (False, True):
            for dim in (64, 128):
                for n in (512, 1024, 4096):
                    listed.append((f"{'causal' if causal else 'full'} {element} d{dim} N{n}",
                                   prefill(Shape(element, 1, n, n, 16, 16, dim, causal))))
    listed.append(("full float16 d64 N1024", prefill(Shape("float16", 1, 1024, 1024, 16, 16, 64))))
    for element in ("float32", "bfloat16"):
        listed.append((f"causal GQA 32/8 {element} d128 N2048",
                       prefill(Shape(element, 1, 2048, 2048, 32, 8, 128, True))))
        listed.append((f"batch 32 x 128 tokens {element} d64", prefill(Shape(element, 32, 128, 128, 12, 12, 64))))
    for dim in (59, 80, 96, 111):
        listed.append((f"full float32 d{dim} N1024", prefill(Shape("float32", 1, 1024, 1024, 16, 16, dim))))
    for mask in ("boolean", "bias"):
        listed.append((f"dense {mask} float32 d64 N1024",
                       prefill(Shape("float32", 1, 1024, 1024, 16, 16, 64, mask=mask))))
    for element in ("float32", "bfloat16", "float16"):
        for q_len in (1, 2, 4, 16):
            listed.append((f"decode 32/8 {element} q{q_len} kv32768",
                           decode(Shape(element, 1, q_len, 32768, 32, 8, 128, True))))
        listed.append((f"decode 16/16 {element} q1 kv8192", decode(Shape(element, 1, 1, 8192, 16, 16, 64, True))))
        listed.append((f"decode batch 8 32/8 {element} q1 kv4096",
                       decode(Shape(element, 8, 1, 4096, 32, 8, 128, True))))
    for q_len in (1, 4, 16):
        listed.append((f"few queries float32 q{q_len} kv2048",
                       prefill(Shape("float32", 1, q_len, 2048, 12, 12, 64))))
    listed.append(("layer 768 12 heads N512", torch_layer(512, 768, 12, False)))
    listed.append(("layer 768 12 heads N512 with weights", torch_layer(512, 768, 12, True)))
    return listed
