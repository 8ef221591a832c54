"""Makes pages from NumPy arrays: the format of docs/page.md once more, independent of the program's writer."""
import base64
import json
import math
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ["induction", "duplicate", "previous", "self", "local", "delimiter"]


def sources():
    """explorer/*.js in the order of explorer/order.txt, and the style."""
    order = (ROOT / "explorer" / "order.txt").read_text().split()
    return "\n".join((ROOT / "explorer" / name).read_text() for name in order), \
        (ROOT / "explorer" / "style.css").read_text()


def visible(nq, nk, mask="causal", window=0):
    i = np.arange(nq)[:, None] + (nk - nq if mask == "causal" else 0)
    j = np.arange(nk)[None, :]
    seen = np.ones((nq, nk), bool) if mask != "causal" else j <= i
    return seen & (i - j < window) if window else seen


def softmax(scores, seen):
    scores = np.where(seen, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Run:
    """weights [layers][heads, nq, nk] float, v [layers][kv, nk, dim], q and k likewise or None."""

    def __init__(self, weights, v, q=None, k=None, tokens=None, key_tokens=None, mask="causal", windows=None,
                 model="random", precision="float32", scale=None, soft_cap=0):
        self.weights, self.v, self.q, self.k = weights, v, q, k
        self.layers, self.heads = len(weights), weights[0].shape[0]
        self.nq, self.nk = weights[0].shape[1:]
        self.kv, self.dim = v[0].shape[0], v[0].shape[2]
        self.tokens = tokens or [f" t{i % 7}" for i in range(self.nq)]
        self.key_tokens = key_tokens
        self.mask, self.windows = mask, windows or [0] * self.layers
        self.model, self.precision = model, precision
        self.scale, self.soft_cap = scale or 1 / math.sqrt(self.dim), soft_cap


def random_run(layers=2, heads=4, kv=2, nq=12, nk=None, dim=8, mask="causal", window=0, seed=1, sharp=3.0, soft_cap=0,
               **more):
    rng = np.random.default_rng(seed)
    nk = nk or nq
    q, k, v = [], [], []
    weights = []
    for layer in range(layers):
        q.append(rng.normal(size=(heads, nq, dim)).astype(np.float16).astype(np.float32) * 1)
        k.append((rng.normal(size=(kv, nk, dim)) * sharp).astype(np.float16).astype(np.float32))
        v.append(rng.normal(size=(kv, nk, dim)).astype(np.float16).astype(np.float32))
        scores = np.einsum("hid,hjd->hij", q[-1], np.repeat(k[-1], heads // kv, 0)) / math.sqrt(dim)
        if soft_cap:
            scores = soft_cap * np.tanh(scores / soft_cap)
        weights.append(softmax(scores, visible(nq, nk, mask, window)[None]))
    return Run(weights, v, q, k, mask=mask, windows=[window] * layers, soft_cap=soft_cap, **more)


# Measures, by their definitions in docs/heads.md.

def target_masks(run, ids, delimiters):
    n = run.nk
    i, j = np.arange(run.nq)[:, None], np.arange(n)[None, :]
    ids = np.asarray(ids)
    same = ids[:run.nq, None] == ids[None, :]
    after = np.zeros((run.nq, n), bool)
    after[:, 1:] = same[:, :-1] & (j[:, 1:] < i)
    return {"induction": after, "duplicate": same & (j < i), "previous": j == i - 1, "self": j == i,
            "local": (j < i) & (j >= i - 8), "delimiter": np.broadcast_to(np.asarray(delimiters)[None, :], (run.nq, n))}


def role_of(m):
    if m["first"] is not None and m["first"] >= .99:
        return "resting"
    for target in TARGETS:
        if m[target]["share"] is not None and m[target]["share"] >= .4:
            return target
    return "broad" if m["spread"] is not None and m["spread"] >= .75 else "mixed"


def number(x):
    return None if x is None or not math.isfinite(x) else float(f"{x:.6g}")


def measures(run, layer, head, ids, delimiters):
    w = run.weights[layer][head].astype(np.float64)
    seen = visible(run.nq, run.nk, run.mask, run.windows[layer])
    count = seen.sum(1)
    cross = run.key_tokens is not None
    entropy_terms = np.where(w > 0, -w * np.log(np.where(w > 0, w, 1)), 0)
    rows = (count > 1) & seen[:, 0]
    outside = w[:, 1:].sum(1)
    n = count - seen[:, 0]
    m = {"entropy": entropy_terms.sum(1).mean(), "first": w[rows, 0].mean() if rows.any() else None,
         "largest": w.max(1).mean()}
    rescaled = w[:, 1:] / np.where(outside > 0, outside, 1)[:, None]
    h = np.where(rescaled > 0, -rescaled * np.log(np.where(rescaled > 0, rescaled, 1)), 0).sum(1)
    many = n >= 2
    total = (outside[many] * np.log(n[many])).sum()
    m["spread"] = (outside[many] * h[many]).sum() / total if total > 0 else None
    i, j = np.arange(run.nq)[:, None], np.arange(run.nk)[None, :]
    m["distance"] = None if cross or outside.sum() == 0 else (w * abs(i - j))[:, 1:].sum() / outside.sum()
    for name, mask in target_masks(run, ids, delimiters).items():
        if cross and name != "delimiter":
            m[name] = {"mean": None, "chance": None, "share": None}
            continue
        on = mask & seen
        met = (on.sum(1) > 0) & (count > 1)
        met_outside = (on[:, 1:].sum(1) > 0) & (n > 1)
        mass, base = (w * on)[:, 1:].sum(1)[met_outside].sum(), outside[met_outside].sum()
        m[name] = {"mean": (w * on).sum(1)[met].mean() if met.any() else None,
                   "chance": (on.sum(1)[met] / count[met]).mean() if met.any() else None,
                   "share": mass / base if base > 0 else None}
    m["role"] = role_of(m)
    return m


# Encodings, by docs/page.md.

def pool(w, bins_q, bins_k):
    nq, nk = w.shape
    rows = np.maximum.reduceat(w, np.arange(bins_q) * nq // bins_q, axis=0)
    return np.maximum.reduceat(rows, np.arange(bins_k) * nk // bins_k, axis=1)


def bytes_of_root(x):
    return np.clip(np.rint(np.sqrt(x) * 255), 0, 255).astype(np.uint8)


def row_bytes(w, seen):
    n = np.maximum(seen.sum(1), 2)
    entropy = np.where(w > 0, -w * np.log(np.where(w > 0, w, 1)), 0).sum(1)
    return b"".join([np.rint(np.clip(entropy / np.log(n), 0, 1) * 255).astype(np.uint8).tobytes(),
                     bytes_of_root(w[:, 0]).tobytes(), bytes_of_root(w.max(1)).tobytes()])


def full_blob(w, causal):
    nq, nk = w.shape
    top = w.max(1).astype(np.float32)
    scaled = np.rint(np.sqrt(w / np.where(top > 0, top, 1)[:, None]) * 255).astype(np.uint8)
    if causal:
        scaled = np.concatenate([scaled[i, :max(0, i + nk - nq + 1)] for i in range(nq)])
    return top.tobytes() + scaled.tobytes()


def map_blob(w, causal, bins=128):
    bq, bk = min(bins, w.shape[0]), min(bins, w.shape[1])
    m = bytes_of_root(pool(w, bq, bk))
    triangle = causal and bq == bk
    return m[np.tril_indices(bq)].tobytes() if triangle else m.tobytes()


def sparse_blob(w, seen, causal, tau, least):
    counts, rests, keys, weights = [], [], [], []
    for row in w:
        order = np.argsort(-row, kind="stable")
        kept = np.sort(order[:max(least, int((row >= tau).sum()))])
        kept = kept[row[kept] > 0]
        counts.append(len(kept))
        rests.append(max(0.0, row.sum() - row[kept].sum()))
        keys.append(kept)
        weights.append(row[kept])
    root = lambda x: np.rint(np.sqrt(np.clip(x, 0, 1)) * 65535).astype("<u2").tobytes()
    key_type = "<u2" if w.shape[1] <= 65536 else "<u4"
    return b"".join([np.array(counts, "<u2").tobytes(), root(np.array(rests)),
                     np.concatenate(keys).astype(key_type).tobytes(), root(np.concatenate(weights)),
                     row_bytes(w, seen), map_blob(w, causal)])


def token_json(piece):
    if isinstance(piece, str):
        return piece
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return {"bytes": piece.hex().upper()}


def page(run, ids=None, delimiters=None, form=None, tau=.01, least=4, steps=True, map_only=(), not_asked=(), title=None):
    """The HTML text of a page."""
    ids = ids if ids is not None else [hash(str(t)) & 0x7fffffff for t in (run.key_tokens or run.tokens)]
    delimiters = delimiters if delimiters is not None else [0] * run.nk
    form = form or ("full" if run.nk <= 512 else "sparse")
    causal = run.mask == "causal"
    all_measures = [measures(run, l, h, ids, delimiters) for l in range(run.layers) for h in range(run.heads)]
    bins_q, bins_k = min(48, run.nq), min(48, run.nk)
    thumbs, layers, forms, sizes, step_blocks, step_heads = [], [], [], [], [], []
    worst = worst_row = 0.0
    for l in range(run.layers):
        seen = visible(run.nq, run.nk, run.mask, run.windows[l])
        blobs = []
        for h in range(run.heads):
            w = np.asarray(run.weights[l][h], np.float32)
            thumbs.append(bytes_of_root(pool(w, bins_q, bins_k) * ((l, h) not in not_asked)).tobytes())
            if (l, h) in not_asked:
                forms.append("n")
                blobs.append(b"")
            elif (l, h) in map_only:
                forms.append("m")
                blobs.append(row_bytes(w, seen) + map_blob(w, causal))
            elif form == "full":
                forms.append("f")
                blobs.append(full_blob(w, causal))
                top = w.max(1, keepdims=True)
                back = top * (np.rint(np.sqrt(w / np.where(top > 0, top, 1)) * 255) / 255) ** 2
                worst, worst_row = max(worst, abs(back - w).max()), max(worst_row, abs(back.sum(1) - w.sum(1)).max())
            else:
                forms.append("s")
                blobs.append(sparse_blob(w, seen, causal, tau, least))
        norms = np.linalg.norm(run.v[l], axis=-1).astype("<f2").tobytes()
        sizes.append([len(b) for b in blobs])
        layers.append(norms + b"".join(blobs))
        if steps and run.q is not None and not not_asked:
            step_heads.append(list(range(run.heads)))
            step_blocks.append(b"".join(np.asarray(x[l]).astype("<f2").tobytes() for x in (run.q, run.k, run.v)))
        else:
            step_heads.append([])
            step_blocks.append(b"")
    asked = [(l, h) not in not_asked for l in range(run.layers) for h in range(run.heads)]
    numbers = lambda values: [number(x) if known else None for x, known in zip(values, asked)]
    column = lambda name: numbers(m[name] for m in all_measures)
    targets = lambda figure: {t: numbers(m[t][figure] for m in all_measures) for t in TARGETS}
    meta = {
        "version": 1, "file": "f" + str(abs(hash(run.model)) % 10**8), "model": run.model, "precision": run.precision,
        "program": "a test", "mask": run.mask, "windows": run.windows, "nq": run.nq, "nk": run.nk,
        "layers": run.layers, "heads": run.heads, "kv": run.kv, "dim": run.dim, "value_dim": run.dim,
        "scale": [run.scale] * run.layers, "soft_cap": [run.soft_cap] * run.layers,
        "tokens": [token_json(t) for t in run.tokens],
        "key_tokens": None if run.key_tokens is None else [token_json(t) for t in run.key_tokens],
        "roles": [m["role"] if known else "unknown" for m, known in zip(all_measures, asked)],
        "measures": {"entropy": column("entropy"), "first": column("first"), "spread": column("spread"),
                     "distance": column("distance"), "largest": column("largest"),
                     **targets("mean")},
        "chance": targets("chance"), "share": targets("share"),
        "thumbs": [bins_q, bins_k], "map": [min(128, run.nq), min(128, run.nk)],
        "forms": "".join(forms), "sizes": sizes, "steps": step_heads,
        "tau": tau if form == "sparse" else None, "least": least if form == "sparse" else None,
        "errors": {"weight": number(worst), "row_sum": number(worst_row)}, "left_out": [],
    }
    return html(meta, b"".join(thumbs), layers, step_blocks, title)


def html(meta, thumbs, layers, steps, title=None):
    script, style = sources()
    escape = lambda s: json.dumps(s, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    block = lambda name, data: (f'<script type="text/plain" id="{name}">' + base64.b64encode(data).decode()
                                + "</script>\n")
    text = (ROOT / "explorer" / "page.html").read_text()
    values = {"title": (title or "Polyhead: " + meta["model"]).replace("&", "&amp;").replace("<", "&lt;"),
              "nonce": meta["file"], "style": style, "meta": escape(meta), "thumbs": block("thumbs", thumbs),
              "script": "const STYLE = " + escape(style) + ";\n" + script,
              "layers": "".join(block(f"layer-{l}", b) for l, b in enumerate(layers))
              + "".join(block(f"steps-{l}", b) for l, b in enumerate(steps) if b)}
    parts = text.split("@@")
    return "".join(values[p] if n % 2 else p for n, p in enumerate(parts))
