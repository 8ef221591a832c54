#!/usr/bin/env python3
"""The planner's page in a browser: its arithmetic against the program's, what it may load, what its sliders do."""

import html
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ.get("POLYHEAD_PROGRAM", "build/polyhead")
BROWSER = shutil.which("chromium")

# Each reaches other branches: GQA variants, windows, latent attention with experts and pages, an encoder, an
# encoder-decoder, a split over devices, numbers beyond 2^53.
PLANS = [
    ["llama-3-70b", "--context", "4096,100k", "--kv-heads", "64,8,1", "--kv-type", "f16,int4", "--machine", "b200"],
    ["gemma-3-27b", "--compare", "mistral-7b,gpt-oss-20b", "--context", "70k", "--chunk", "300"],
    ["deepseek-v3", "--context", "5000", "--generate", "7", "--page", "64", "--chunk", "1000"],
    ["deepseek-v3", "--context", "5000", "--latent-form", "absorbed", "--devices", "8"],
    ["bert-base", "--compare", "transformer-base,gpt-2-small", "--context", "512"],
    ["llama-3-70b", "--context", "100k", "--devices", "8", "--split", "ring", "--weight-type", "q4_k"],
]


def plan(*arguments):
    return subprocess.run([PROGRAM, "plan", *arguments], capture_output=True, text=True, timeout=120, check=True)


@unittest.skipUnless(BROWSER, "no chromium here (scripts/setup test)")
class PlanPage(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)

    def opened(self, arguments, script=""):
        """The page's document after it ran, with `script` at its end."""
        page = self.directory / "plan.html"
        plan(*arguments, "--html", str(page))
        text = page.read_text()
        if script:
            page.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
        done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000",
                               f"--user-data-dir={self.directory}/profile", "--dump-dom", page.as_uri()],
                              capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    def test_its_arithmetic_is_the_programs(self):
        for arguments in PLANS:
            document = self.opened(arguments)
            check = re.search(r'<html[^>]*data-check="([^"]*)"', document)
            self.assertIsNotNone(check, arguments)
            self.assertRegex(html.unescape(check[1]), r"^equal \d\d+$", arguments)

    def test_a_wrong_figure_would_be_seen(self):
        page = self.directory / "plan.html"
        plan(*PLANS[0], "--html", str(page))
        text = page.read_text()
        wrong = text.replace("ramp * (ramp + 1n)", "ramp * ramp")
        self.assertNotEqual(wrong, text)
        page.write_text(wrong)
        done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000",
                               f"--user-data-dir={self.directory}/profile", "--dump-dom", page.as_uri()],
                              capture_output=True, text=True, timeout=120, check=True)
        self.assertTrue('data-check="differs' in done.stdout)

    def test_sliders_move_the_verdict(self):
        move = """
          const set = (id, value) => { const e = document.getElementById(id); e.value = value;
                                       e.dispatchEvent(new Event('input')); };
          set('heads', 3); set('context', 96);
          document.body.dataset.small = document.getElementById('verdict').textContent;
          set('context', 184);
          document.body.dataset.large = document.getElementById('verdict').textContent;
        """
        document = self.opened(PLANS[0], move)
        small = re.search(r'data-small="([^"]*)"', document)[1]
        large = re.search(r'data-large="([^"]*)"', document)[1]
        self.assertRegex(small, r"^Fits: [\d.]+ GB of 192 GB4,096 tokens, batch 1, 8 KV heads")
        self.assertRegex(large, r"^Does not fit: [\d.]+ [GT]B of KV against 192 GB")

    def test_it_loads_nothing(self):
        page = self.directory / "plan.html"
        plan(*PLANS[0], "--html", str(page))
        text = page.read_text()
        self.assertIn("default-src 'none'", text)
        self.assertEqual(re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", text), [])
        self.assertEqual([u for u in re.findall(r"https?://[^\s\"'<)]+", text) if "w3.org" not in u], [])


if __name__ == "__main__":
    unittest.main()
