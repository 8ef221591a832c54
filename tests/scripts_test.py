#!/usr/bin/env python3
"""What scripts say to arguments they do not know: the argument, what they expected, and how they are called."""

import subprocess
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
UNKNOWN = {
    "build": "nothing-of-the-kind",
    "format": "--wrong",
    "get-model": "nothing-of-the-kind",
    "lint": "--wrong",
    "mutate": "--wrong",
    "run": "nothing-of-the-kind",
    "setup": "nothing-of-the-kind",
    "test": "--wrong",
}


def call(script, *arguments):
    """By a path relative to a folder that is not the project's, as people do."""
    return subprocess.run([f"{SCRIPTS.parent.name}/scripts/{script}", *arguments], cwd=SCRIPTS.parent.parent,
                          capture_output=True, text=True, check=False)


class Scripts(unittest.TestCase):
    def test_each_names_an_argument_it_does_not_know(self):
        for script, argument in UNKNOWN.items():
            with self.subTest(script=script):
                done = call(script, argument)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(argument, done.stderr)
                self.assertIn(script, done.stderr)
                self.assertNotIn("No such file", done.stderr)

    def test_format_leaves_what_is_no_code(self):
        done = call("format", "README.md")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("README.md", done.stderr)

    def test_each_is_listed_here(self):
        scripts = {path.name for path in SCRIPTS.iterdir() if path.is_file() and not path.suffix}
        self.assertEqual(scripts, set(UNKNOWN))

    def test_help_says_how_to_call_it(self):
        for script in UNKNOWN:
            with self.subTest(script=script):
                done = call(script, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"scripts/{script}" if script != "mutate" else "mutate", done.stdout)


if __name__ == "__main__":
    unittest.main()
