#!/usr/bin/env python3
"""The planner's memory against what a run of the program takes: `plan --here --measure` on a model made here, and on
real ones where they are."""

import json
import os
import subprocess
import tempfile
import unittest
from array import array
from pathlib import Path

import llama_checkpoint

PROGRAM = os.environ.get("POLYHEAD_PROGRAM", "build/polyhead")
WITHIN = 0.05


def write_model(folder):
    """One value throughout: what the weights are changes no byte."""
    llama_checkpoint.write(folder, array("f", [0.01]) * (1 << 20), layers=8, dim=512, heads=8, kv_heads=2, head_dim=64,
                           ffn=1536, vocabulary=20000, context=4096)


class Memory(unittest.TestCase):
    def measured(self, *arguments):
        done = subprocess.run([PROGRAM, "plan", *arguments, "--here", "--measure", "--json"], capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        case, run = plan["cases"][0], plan["measured"]
        if run["resident_bytes"] <= 0:
            self.skipTest("the system does not say what is resident")
        self.assertAlmostEqual(case["weight_bytes"] / run["weight_bytes"], 1, delta=0.02)
        self.assertEqual(case["kv_cache_bytes"], run["cache_bytes"])
        self.assertAlmostEqual(case["memory_bytes"] / run["resident_bytes"], 1, delta=WITHIN, msg=str(arguments))

    def fetched(self, name):
        """Whether the model is here: else the program says what fetches it."""
        done = subprocess.run([PROGRAM, "info", name], capture_output=True, text=True, timeout=60, check=False)
        return "scripts/get-model" not in done.stderr

    def test_a_model_made_here(self):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder))
            self.measured(folder, "--context", "1024")
            self.measured(folder, "--context", "1024", "--weight-type", "bf16")

    def test_real_models(self):
        # Where a folder is named, all of them are asked for.
        names = [name for name in ("smollm2", "gemma3") if "POLYHEAD_MODELS" in os.environ or self.fetched(name)]
        if not names:
            self.skipTest("no model here (scripts/get-model smollm2)")
        for name in names:
            self.measured(name, "--context", "1024")
        self.measured(names[0], "--context", "512", "--weight-type", "bf16", "--threads", "1")


if __name__ == "__main__":
    unittest.main()
