#!/usr/bin/env python3
"""The mistakes that scripts/mutate makes on purpose still apply to the sources: whether tests notice them takes long, this
does not."""

import subprocess
import sys
import unittest
from pathlib import Path

MUTATE = Path(__file__).resolve().parent.parent / "scripts" / "mutate"


class Mutants(unittest.TestCase):
    def test_each_edit_applies(self):
        done = subprocess.run([sys.executable, "-B", MUTATE, "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
