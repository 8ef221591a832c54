#!/usr/bin/env python3
"""The planner's page in a browser: its arithmetic against the program's, what it may load, what its sliders do."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from browser import CHROMIUM, Browser, axe_source

PROGRAM = os.environ.get("POLYHEAD_PROGRAM", "build/polyhead")

# Each reaches other branches: GQA variants, windows, latent attention with experts and pages, an encoder, an
# encoder-decoder, a split over devices, numbers beyond 2^53, keys of another type than values, scratch as the library
# keeps it.
PLANS = [
    ["llama-3-70b", "--context", "4096,100k", "--kv-heads", "64,8,1", "--kv-type", "f16,int4", "--machine", "b200"],
    ["llama-3-8b", "--compare", "deepseek-v3", "--kv-type", "int8-by-channel,int4-by-channel,cache-int8", "--devices", "4"],
    ["gemma-3-27b", "--compare", "mistral-7b,gpt-oss-20b", "--context", "70k", "--chunk", "300"],
    ["deepseek-v3", "--context", "5000", "--generate", "7", "--page", "64", "--chunk", "1000"],
    ["deepseek-v3", "--context", "5000", "--latent-form", "absorbed", "--devices", "8"],
    ["bert-base", "--compare", "transformer-base,gpt-2-small", "--context", "512"],
    ["llama-3-70b", "--context", "100k", "--devices", "8", "--split", "ring", "--weight-type", "q4_k"],
    ["deepseek-v3", "--context", "3001", "--devices", "3", "--split", "ring", "--machine", "b200", "--compute", "fp8"],
    ["llama-3-8b", "--context", "2000", "--here", "--weight-type", "bf16", "--compute", "f32"],
]


def plan(*arguments):
    return subprocess.run([PROGRAM, "plan", *arguments], capture_output=True, text=True, timeout=120, check=True)


SET = """(values => { for (const [id, value] of Object.entries(values)) { const e = document.getElementById(id);
  e.value = value; e.dispatchEvent(new Event('input')); } return document.getElementById('verdict').textContent; })"""


@unittest.skipUnless(CHROMIUM, "no chromium here (scripts/setup test)")
class PlanPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.scratch = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        cls.pages = {}

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.scratch.cleanup()

    def setUp(self):
        self.browser.log.clear()
        self.browser.size(1400)
        self.scheme("light")

    def tearDown(self):
        self.assertEqual(self.browser.log, [], "errors, or asked the network")

    def page(self, arguments):
        """The file of one plan, made once."""
        key = tuple(arguments)
        if key not in self.pages:
            path = Path(self.scratch.name) / f"plan{len(self.pages)}.html"
            plan(*arguments, "--html", str(path))
            self.pages[key] = path
        return self.pages[key]

    def open(self, arguments):
        self.browser.open(self.page(arguments).as_uri())

    def scheme(self, name):
        self.browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def test_its_arithmetic_is_the_programs(self):
        for arguments in PLANS:
            self.open(arguments)
            self.assertRegex(self.browser.js("document.documentElement.dataset.check"), r"^equal \d\d+$", arguments)

    def test_a_file_of_several_types(self):
        """Each part by its own types, in the page as in the program."""
        folder = os.environ.get("POLYHEAD_MODELS", str(Path.home() / ".cache" / "polyhead" / "models"))
        files = sorted(Path(folder).glob("*.gguf"))
        if not files:
            self.skipTest("no model here (scripts/get-model gemma3)")
        for file in files:
            self.open([str(file), "--context", "3000"])
            self.assertRegex(self.browser.js("document.documentElement.dataset.check"), r"^equal \d\d+$", file)

    def test_a_wrong_figure_would_be_seen(self):
        for arguments, right, broken in ((PLANS[0], "ramp * (ramp + 1n)", "ramp * ramp"),
                                         (PLANS[6], "weights + up(moved[kind] - weights, work.ring)", "moved[kind]"),
                                         (PLANS[0], "Number(made.bytes[kind]) / machine.bandwidth", "0")):
            text = self.page(arguments).read_text()
            wrong = text.replace(right, broken)
            self.assertNotEqual(wrong, text)
            path = Path(self.scratch.name) / "wrong.html"
            path.write_text(wrong)
            self.browser.open(path.as_uri())
            self.assertTrue(self.browser.js("document.documentElement.dataset.check").startswith("differs"), right)

    def test_times_are_those_of_the_program(self):
        """Of one device, however the work is divided: in a ring each has a share of all but the weights."""
        seconds = lambda text: float(text.split()[0]) * {"ms": 1e-3, "s": 1, "h": 3600}[text.split()[1]]
        for split in ([], ["--devices", "4"], ["--devices", "4", "--split", "ring"]):
            arguments = ["llama-3-8b", "--context", "100k", "--machine", "h100", *split]
            self.open(arguments)
            case = json.loads(plan(*arguments, "--json").stdout)["cases"][0]
            of_a_device = {row[0]: int(row[1].replace(",", "")) for row in self.browser.js(
                "[...document.querySelectorAll('#exact tr')].map((r) => [...r.cells].map((c) => c.textContent))")}
            shown = dict(self.browser.js("[...document.querySelectorAll('.figure')].map((f) => [f.querySelector('span')"
                                         ".textContent, f.querySelector('b').textContent])"))
            prefill, decode = (case[phase]["time"] for phase in ("prefill", "decode_step"))
            self.assertAlmostEqual(seconds(shown["prefill, at the roofline"]) / prefill["roofline_seconds"], 1, delta=0.01)
            self.assertAlmostEqual(float(shown["tokens/s decoded, at the roofline"]) * decode["roofline_seconds"], 1,
                                   delta=0.01)
            sums = lambda time, what: sum(kernel[what] for kernel in time["kernels"])
            self.assertEqual(of_a_device["prefill: all"], sums(prefill, "flops"), split)
            self.assertEqual(of_a_device["decode step reads and writes"], sums(decode, "bytes"), split)

    def test_what_was_asked_is_counted_as_it_was_asked(self):
        for counting, name in (("full", "in full"), ("triangle", "visible pairs")):
            self.open(["llama-3-8b", "--context", "32k", "--count", counting])
            column = self.browser.js("[...document.querySelectorAll('#asked th')].map((h) => h.textContent)").index(
                f"attention of prefill, {name}")
            self.assertEqual(self.browser.js(f"document.querySelector('#asked tbody tr').cells[{column}].textContent"),
                             self.browser.js("document.querySelectorAll('.figure b')[2].textContent"), counting)

    def test_sliders_move_the_verdict(self):
        self.open(PLANS[0])
        move = lambda **values: self.browser.js(f"{SET}({values})")
        self.assertRegex(move(heads=3, context=96),
                         r"^Fits: [\d.]+ GB of 192 GB4,096 tokens, batch 1, 8 KV heads")
        self.assertRegex(move(context=184), r"^Does not fit: [\d.]+ [GT]B of KV against 192 GB")
        small, large = move(context=136, batch=0), move(batch=8)
        self.assertRegex(small, r"131,072 tokens, batch 1,")
        self.assertRegex(large, r"131,072 tokens, batch 4,")
        kv = lambda text: float(re.search(r"KV ([\d.]+) GB \+", text)[1])
        self.assertAlmostEqual(kv(large) / kv(small), 4, delta=0.05)
        self.assertIn(" 1 KV head,", move(heads=0))
        self.assertIn(", int4:", move(type=1))

    def test_its_controls_stay_within_what_the_command_line_takes(self):
        context = lambda **values: int(re.search(r"([\d,]+) tokens", self.browser.js(f"{SET}({values})"))[1].replace(",", ""))
        self.open(["gpt-2-small", "--compare", "llama-3-8b", "--context", "512", "--generate", "500"])
        self.assertEqual(context(context=184), 1024)
        self.assertGreater(context(context=0), 500)
        self.assertEqual(context(model=1, context=184), 2 ** 23)
        self.assertEqual(context(model=0), 1024, "as far as the table of positions reaches")
        self.open(["bert-base", "--context", "512"])
        self.assertTrue(self.browser.js("document.getElementById('type').disabled"))
        self.open(["--layers", "2", "--q-heads", "12", "--head-dim", "8", "--devices", "3", "--context", "512"])
        heads = [re.search(r"(\d+) KV head", self.browser.js(f"{SET}({{heads: {n}}})"))[1] for n in range(6)]
        self.assertEqual(heads, ["1", "3", "6", "12", "12", "12"])
        names = "[...document.querySelectorAll('#machine option')].map((o) => o.textContent).join()"
        self.open(["llama-3-8b", "--context", "512", "--machine", "h100", "--compute", "fp8"])
        self.assertNotIn("A100", self.browser.js(names))
        self.assertIn("H100", self.browser.js("document.getElementById('machine').selectedOptions[0].textContent"))

    def test_a_row_of_the_table_is_shown(self):
        self.open(PLANS[0])
        rows = self.browser.js("document.querySelectorAll('#asked tbody tr').length")
        self.assertEqual(rows, 12)
        self.browser.js("document.querySelector('#asked tbody button').focus()")
        self.browser.key("Enter")
        self.assertIn("4,096 tokens, batch 1, 64 KV heads, f16", self.browser.js(f"{SET}({{}})"))

    def test_the_dot_is_spoken_of_where_it_is(self):
        def dot():
            note = self.browser.js("document.getElementById('memory-note').textContent")
            circles = self.browser.js("[...document.querySelectorAll('#memory circle')].map((c) => c.getBoundingClientRect()"
                                      ".right <= document.querySelector('#memory svg').getBoundingClientRect().right)")
            self.assertLessEqual(len(circles), 1)
            self.assertTrue(all(circles), "inside of the plot")
            self.assertEqual("the dot is" in note, len(circles) == 1, note)
            return len(circles)
        self.open(["llama-3-8b", "--context", "100,4096,8Mi,100M"])
        row = "document.querySelectorAll('#asked tbody button')"
        drawn = []
        for n in range(4):
            self.browser.js(f"{row}[{n}].click()")
            drawn.append(dot())
        self.assertEqual(drawn, [0, 1, 1, 0])

    def test_labels_stay_in_their_cards(self):
        outside = """(id => { const card = document.getElementById(id).closest('.card').getBoundingClientRect();
            return [...document.querySelectorAll('#' + id + ' text')].filter((t) => { const box = t.getBoundingClientRect();
              return box.left < card.left || box.right > card.right; }).map((t) => t.textContent); })"""
        for arguments in (["llama-3-405b", "--context", "100M", "--machine", "h100", "--batch", "1000"],
                          ["llama-3-405b", "--context", "4096", "--machine", "h100"],
                          ["smollm2-135m", "--context", "4096", "--machine", "h100"]):
            for width in (420, 1100):
                self.browser.size(width)
                self.open(arguments)
                for plot in ("share", "memory", "roof", "bar"):
                    self.assertEqual(self.browser.js(f"{outside}('{plot}')"), [], f"{plot} {width} {arguments}")

    def test_amounts_have_their_own_units(self):
        text = lambda arguments: self.browser.js("document.body.innerText") if not self.open(arguments) else ""
        small = text(["--layers", "1", "--q-heads", "1", "--head-dim", "8", "--context", "2"])
        self.assertIn("KV cache, 64 B", small)
        self.assertIn("1.15 kFLOP", small)
        self.assertNotIn("0.00", small)
        large = text(["llama-3-405b", "--context", "100M", "--batch", "1000", "--machine", "h100"])
        self.assertIn("KV cache, 45.8 PiB", large)
        self.assertIn("82.6 YFLOP", large)
        self.assertIn("967,303 days", large)
        self.assertIn("weights in bf16, experts in mxfp4", text(["gpt-oss-20b", "--context", "512"]))
        self.assertIn("weights in int8\n", text(["gpt-oss-20b", "--context", "512", "--weight-type", "int8"]))

    def test_widths_and_themes(self):
        for arguments in (PLANS[0], PLANS[2], PLANS[4]):
            for width in (360, 768, 1400):
                for scheme in ("light", "dark"):
                    self.browser.size(width)
                    self.scheme(scheme)
                    self.open(arguments)
                    self.assertLessEqual(self.browser.js("document.documentElement.scrollWidth"), width,
                                         f"{width} {arguments[0]}")

    def test_axe(self):
        source = axe_source()
        if source is None:
            self.skipTest("axe-core-python cannot be downloaded")
        for width, scheme in ((1400, "light"), (1400, "dark"), (360, "light"), (360, "dark")):
            for arguments in (PLANS[0], PLANS[4]):
                self.browser.size(width)
                self.scheme(scheme)
                self.open(arguments)
                self.browser.js(source + ";0")
                self.assertEqual(self.browser.js(
                    "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => v.id + ': ' +"
                    " v.nodes.map(n => n.html).slice(0, 3).join(' | ')))"), [], f"{width} {scheme} {arguments[0]}")

    def test_it_loads_nothing(self):
        text = self.page(PLANS[0]).read_text()
        self.assertIn("default-src 'none'", text)
        self.assertEqual(re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", text), [])
        self.assertEqual([u for u in re.findall(r"https?://[^\s\"'<)]+", text) if "w3.org" not in u], [])


if __name__ == "__main__":
    unittest.main()
