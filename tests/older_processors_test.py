#!/usr/bin/env python3
"""On processors older than this one, emulated: a set they lack must not run, and theirs gives the bits it gives here."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy

PROGRAM = os.environ.get("POLYHEAD_PROGRAM", "build/polyhead")
TESTS = Path(os.environ.get("POLYHEAD_BUILD_DIR", "build")) / "polyhead_tests"
EMULATOR = shutil.which("qemu-x86_64")
PROCESSORS = {"Nehalem": "portable", "Haswell": "avx2"}  # and the set that is chosen there


def on(processor, *command, **environment):
    return subprocess.run([EMULATOR, "-cpu", processor, *map(str, command)], capture_output=True, timeout=600,
                          env={**os.environ, "POLYHEAD_THREADS": "2", **environment})


def here(isa, *command):
    return subprocess.run([*map(str, command)], capture_output=True, timeout=120,
                          env={**os.environ, "POLYHEAD_ISA": isa, "POLYHEAD_THREADS": "2"})


def lacks(isa):
    """Whether this machine has not got the set that the emulated one has."""
    return here(isa, PROGRAM, "explain").returncode != 0


@unittest.skipUnless(EMULATOR, "no qemu-x86_64 here (scripts/setup test installs it)")
@unittest.skipUnless(os.uname().machine == "x86_64", "the program is not for x86-64")
class OlderProcessors(unittest.TestCase):
    def test_the_best_set_they_have_is_chosen_and_runs(self):
        for processor, isa in PROCESSORS.items():
            done = on(processor, PROGRAM, "explain", "--json")
            with self.subTest(processor):
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["attention"]["isa"], isa)

    def test_a_set_they_lack_is_refused(self):
        done = on("Haswell", PROGRAM, "explain", POLYHEAD_ISA="avx512")
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"avx512", done.stderr)

    def test_the_bits_are_those_of_the_set_here(self):
        random = numpy.random.default_rng(1)
        with tempfile.TemporaryDirectory() as scratch:
            at = Path(scratch)
            for kind in ("float32", "float16"):
                for name, heads, tokens in (("q", 4, 70), ("one", 4, 1), ("k", 2, 150), ("v", 2, 150)):
                    numpy.save(at / f"{name}.npy", random.standard_normal((tokens, heads, 40)).astype(kind))
                for q, options in (("q", ["--align", "end", "--causal"]), ("q", ["--align", "end", "--alibi"]), ("one", [])):
                    command = [PROGRAM, "attend", at / f"{q}.npy", at / "k.npy", at / "v.npy", "-o", at / "out.npy",
                               *options]
                    for processor, isa in PROCESSORS.items():
                        with self.subTest(kind=kind, options=options, processor=processor):
                            if lacks(isa):
                                self.skipTest(f"this machine has no {isa}")
                            done = here(isa, *command)
                            self.assertEqual(done.returncode, 0, done.stderr)
                            expected = (at / "out.npy").read_bytes()
                            (at / "out.npy").unlink()
                            done = on(processor, *command)
                            self.assertEqual(done.returncode, 0, done.stderr)
                            self.assertEqual((at / "out.npy").read_bytes(), expected)

    def test_every_kind_of_kernel_runs(self):
        kinds = ["FewRows.*", "Merge.*", "ModifierOrder.*", "PagedCache.*", "Rowwise*", "GemmQuantised.StacksParts*",
                 "Gemm.OutputsOf*", "Inspect.StatisticsAgree*", "Layer.SameBitsRagged",
                 "LatentAttention.SameBits*"]
        for processor in PROCESSORS:
            done = on(processor, TESTS, "--gtest_filter=" + ":".join(kinds), "--gtest_brief=1",
                      POLYHEAD_TEST_EFFORT="smoke")
            with self.subTest(processor):
                self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])


if __name__ == "__main__":
    unittest.main()
