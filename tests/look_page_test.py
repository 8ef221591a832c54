#!/usr/bin/env python3
"""The pages that the program writes, decoded by docs/page.md, against the figures that it prints."""
import base64
import json
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np

import page_file

PROGRAM = os.environ.get("POLYHEAD_PROGRAM", str(page_file.ROOT / "build" / "polyhead"))
MODELS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyhead" / "models"
SMOLLM2 = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = MODELS / "gemma-3-270m-q4_k_m.gguf"


class Written:
    """A page that the program wrote, decoded by docs/page.md."""

    def __init__(self, path):
        self.text = Path(path).read_text()
        self.meta = json.loads(self.between('id="meta">'))

    def between(self, start):
        return self.text.split(start, 1)[1].split("</script>", 1)[0]

    def row(self, layer, head, query):
        """(weights by key, the others' sum)"""
        meta = self.meta
        bytes_ = base64.b64decode(self.between(f'id="layer-{layer}">'))
        at = 2 * meta["kv"] * meta["nk"] + sum(meta["sizes"][layer][:head])
        n, causal = meta["nq"], meta["mask"] == "causal"
        if meta["forms"][layer * meta["heads"] + head] == "f":
            top = np.frombuffer(bytes_, "<f4", n, at)[query]
            start, count = (query * (query + 1) // 2, query + 1) if causal else (query * n, n)
            cells = np.frombuffer(bytes_, np.uint8, count, at + 4 * n + start)
            return dict(enumerate(top * (cells / 255) ** 2)), 0.0
        counts = np.frombuffer(bytes_, "<u2", n, at).astype(int)
        rest = np.frombuffer(bytes_, "<u2", n, at + 2 * n)[query]
        total, first = counts.sum(), counts[:query].sum()
        keys = np.frombuffer(bytes_, "<u2", total, at + 4 * n)[first:first + counts[query]]
        roots = np.frombuffer(bytes_, "<u2", total, at + 4 * n + 2 * total)[first:first + counts[query]]
        return dict(zip(keys.tolist(), (roots / 65535) ** 2)), (rest / 65535) ** 2


    def steps(self, layer):
        """q [listed heads][nq][dim] and k [their KV heads][nk][dim]"""
        meta = self.meta
        heads, dim = meta["steps"][layer], meta["dim"]
        kvs = sorted({h // (meta["heads"] // meta["kv"]) for h in heads})
        halves = np.frombuffer(base64.b64decode(self.between(f'id="steps-{layer}">')), "<f2").astype(float)
        end = len(heads) * meta["nq"] * dim
        return (halves[:end].reshape(len(heads), meta["nq"], dim),
                halves[end:end + len(kvs) * meta["nk"] * dim].reshape(len(kvs), meta["nk"], dim))


def gguf_with(path, out, **numbers):
    """The same file with these float32 under further keys; what follows them is moved by whole alignments."""
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    more = b"".join(text(key.replace("__", ".")) + struct.pack("<If", 6, x) for key, x in numbers.items())
    fill = text("a") + struct.pack("<I", 8)  # a string that fills the last alignment
    more += fill + text("-" * (-(len(more) + len(fill) + 8) % 32))
    old = path.read_bytes()
    count, = struct.unpack_from("<Q", old, 16)
    out.write_bytes(old[:16] + struct.pack("<Q", count + len(numbers) + 1) + more + old[24:])
    return out


class LookPageTest(unittest.TestCase):
    """polyhead look -o: what stands in the file is what --json prints."""

    @classmethod
    def setUpClass(cls):
        try:
            told = subprocess.run([PROGRAM, "look", "--help"], capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            told = ""
        if "--output" not in told:
            raise unittest.SkipTest("the program here was built without look -o")

    def look(self, model, *more):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "report.html"
            done = subprocess.run([PROGRAM, "look", str(model), "--json", "-o", str(out), *more], capture_output=True,
                                  text=True, timeout=300, check=True)
            self.assertEqual(sorted(p.name for p in Path(folder).iterdir()), ["report.html"])
            return Written(out), json.loads(done.stdout)

    def check(self, page, printed, queries):
        meta = page.meta
        self.assertEqual(meta["nq"], len(printed["ids"]))
        self.assertEqual(meta["roles"], [h["role"] for h in printed["heads"]])
        for head in printed["heads"]:
            index = head["layer"] * meta["heads"] + head["head"]
            self.assertAlmostEqual(meta["measures"]["entropy"][index], head["mean_entropy"], delta=1e-5)
            if index % 7:
                continue
            for query in queries:
                row, rest = page.row(head["layer"], head["head"], query)
                exact = head["rows"][str(query)]
                bound = 2e-5 if meta["tau"] else meta["errors"]["weight"] + 1e-6
                self.assertTrue(row)
                for key, w in row.items():
                    self.assertLess(abs(w - exact[key]), bound)
                if meta["tau"]:
                    self.assertAlmostEqual(sum(row.values()) + rest, 1, delta=2e-3)
                    self.assertTrue(all(key in row for key, w in enumerate(exact) if w > meta["tau"] + 1e-5))

    def test_an_encoder(self):
        page, printed = self.look(page_file.ROOT / "tests/data/gguf_models/bert.gguf", "--text", "a b c d", "--rows", "0,2")
        self.assertEqual(page.meta["mask"], "none")
        self.check(page, printed, (0, 2))

    def test_heads_that_were_not_asked_for_have_a_form_of_their_own(self):
        model = page_file.ROOT / "tests/data/gguf_models/bert.gguf"
        meta = self.look(model, "--text", "a b c d", "--rows", "2", "--heads", "0.1")[0].meta
        known = [n == 1 for n in range(meta["layers"] * meta["heads"])]
        self.assertEqual(meta["forms"], "".join("f" if x else "n" for x in known))
        self.assertEqual([r != "unknown" for r in meta["roles"]], known)
        self.assertEqual([s > 0 for layer in meta["sizes"] for s in layer], known)

    def check_steps(self, page, printed, query, cap):
        """The script's way from q and k to the weights of a query that sees all, with scale and soft-cap as the page
        states them."""
        meta = page.meta
        self.assertEqual(meta["soft_cap"], [cap] * meta["layers"])
        for head in printed["heads"]:
            q, k = page.steps(head["layer"])
            scores = k[head["kv_head"]] @ q[head["head"]][query] * meta["scale"][head["layer"]]
            if cap:
                scores = cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            self.assertLess(abs(weights / weights.sum() - head["rows"][str(query)]).max(), 0.003)

    def test_weights_follow_from_what_the_page_keeps(self):
        model = page_file.ROOT / "tests/data/gguf_models/bert.gguf"
        for numbers in ({}, {"bert__attention__scale": 0.0}, {"bert__attention__scale": 0.9}):
            with self.subTest(numbers), tempfile.TemporaryDirectory() as folder:
                changed = gguf_with(model, Path(folder) / "changed.gguf", **numbers)
                page, printed = self.look(changed, "--text", "a b c d e f", "--rows", "3")
                self.check_steps(page, printed, 3, 0.0)

    @unittest.skipUnless(GEMMA3.exists(), "needs scripts/get-model gemma3")
    def test_soft_capped_weights_follow_from_what_the_page_keeps(self):
        with tempfile.TemporaryDirectory() as folder:
            capped = gguf_with(GEMMA3, Path(folder) / "capped.gguf", gemma3__attn_logit_softcapping=2.0)
            page, printed = self.look(capped, "--text", "The cat sat on the mat", "--rows", "6")
            self.assertEqual(page.meta["nq"], 7)
            self.check_steps(page, printed, 6, 2.0)

    @unittest.skipUnless(SMOLLM2.exists(), "needs scripts/get-model smollm2")
    def test_a_decoder_whole_and_sparse(self):
        text = str(page_file.ROOT / "docs" / "heads.md")
        page, printed = self.look(SMOLLM2, "--file", text, "--tokens", "60", "--rows", "0,31,59")
        self.assertEqual(set(page.meta["forms"]), {"f"})
        self.assertLess(page.meta["errors"]["weight"], 0.004)
        self.check(page, printed, (0, 31, 59))
        page, printed = self.look(SMOLLM2, "--file", text, "--tokens", "530", "--rows", "7,529")
        self.assertEqual(set(page.meta["forms"]), {"s"})
        self.check(page, printed, (7, 529))


if __name__ == "__main__":
    unittest.main()
