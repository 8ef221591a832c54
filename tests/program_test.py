#!/usr/bin/env python3
"""The program as a process: exit status, streams, colour, interruption. What it computes is tested in cli_test.cpp."""

import os
import pty
import re
import resource
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM = os.environ.get("POLYHEAD_PROGRAM", "build/polyhead")
DATA = Path(__file__).parent / "data"


def run(*arguments, **more):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, **more)


def npy(path, shape, fill=0.5):
    """A float32 .npy file, without NumPy."""
    import struct

    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    count = 1
    for extent in shape:
        count *= extent
    Path(path).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
                           + struct.pack("<f", fill) * count)


def on_a_terminal(*arguments, **environment):
    """What the program writes when both its streams are a terminal."""
    controller, terminal = pty.openpty()
    with subprocess.Popen([PROGRAM, *arguments], stdin=terminal, stdout=terminal, stderr=terminal,
                          env={**os.environ, "TERM": "xterm", **environment}) as process:
        os.close(terminal)
        written = b""
        while True:
            try:
                piece = os.read(controller, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            written += piece
        process.wait(timeout=120)
    os.close(controller)
    return written.decode()


class Program(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)

    def test_exit_status_and_streams(self):
        done = run("explain", "--heads", "2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        refused = run("explain", "--heads", "3")
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertRegex(refused.stderr, r"^polyhead: explain: model_dim \(4\) is not a multiple of --heads \(3\)\n$")
        threads = run("explain", env={**os.environ, "POLYHEAD_THREADS": "99999999999"})
        self.assertEqual(threads.returncode, 1)
        self.assertIn('POLYHEAD_THREADS: "99999999999" is not a whole number from 1 to 4096', threads.stderr)
        usage = run("explain", "--head", "3")
        self.assertEqual((usage.returncode, usage.stdout), (2, ""))
        self.assertIn("polyhead explain --help", usage.stderr)

    def test_a_full_disk_is_a_failure(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        with open("/dev/full", "w") as full:
            for arguments in (["explain"], ["--help"], ["--version"], ["explain", "--help"]):
                done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=120)
                self.assertEqual(done.returncode, 1, arguments)
                self.assertIn("standard output could not be written", done.stderr)

    def test_colour_only_on_a_terminal_that_wants_it(self):
        self.assertNotIn("\x1b", run("explain").stdout)
        self.assertIn("\x1b[1m", on_a_terminal("explain", NO_COLOR=""))
        self.assertNotIn("\x1b", on_a_terminal("explain", NO_COLOR="1"))
        self.assertNotIn("\x1b", on_a_terminal("explain", NO_COLOR="", TERM="dumb"))
        self.assertNotIn("\x1b[1m", on_a_terminal("explain", "--json", NO_COLOR=""))

    def test_colour_changes_no_column(self):
        plain = on_a_terminal("explain", "--heads", "2", "--causal", NO_COLOR="1")
        coloured = on_a_terminal("explain", "--heads", "2", "--causal", NO_COLOR="")
        self.assertEqual(re.sub(r"\x1b\[\d*m", "", coloured), plain)

    def test_interrupted_it_leaves_nothing_behind(self):
        """A call of some 10^12 operations, stopped early: neither the output nor a part of it stays."""
        for name in "qkv":
            npy(self.directory / f"{name}.npy", (16384, 16, 128))
        out = self.directory / "out.npy"
        out.write_bytes(b"old")
        with subprocess.Popen([PROGRAM, "attend", *(str(self.directory / f"{n}.npy") for n in "qkv"), "-o", str(out)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), -signal.SIGINT)
        self.assertEqual(out.read_bytes(), b"old")
        self.assertEqual(sorted(p.name for p in self.directory.iterdir()), ["k.npy", "out.npy", "q.npy", "v.npy"])

    def test_standard_input_that_cannot_be_read(self):
        folder = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        made = run("tokenize", str(DATA / "gguf_models" / "bert.gguf"), "--file", "-", stdin=folder)
        self.assertEqual((made.returncode, made.stdout), (1, ""))
        self.assertEqual(made.stderr, "polyhead: standard input: cannot be read\n")

    def test_a_limit_on_the_size_of_files_is_told_and_leaves_nothing_behind(self):
        for name in "qkv":
            npy(self.directory / f"{name}.npy", (64, 1, 64))
        self.attend_within(4096, "out.npy")

    def test_results_appear_together_or_not_at_all(self):
        for name, dim in (("q", 64), ("k", 64), ("v", 1)):
            npy(self.directory / f"{name}.npy", (64, 1, dim))
        self.attend_within(4096, "weights.npy", "--weights", str(self.directory / "weights.npy"))

    def attend_within(self, most_bytes, refused, *options):
        arrays = [str(self.directory / f"{name}.npy") for name in "qkv"]
        limited = run("attend", *arrays, "-o", str(self.directory / "out.npy"), *options,
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)))
        self.assertEqual((limited.returncode, limited.stdout), (1, ""))
        self.assertIn(f"{refused}: cannot be written: File too large", limited.stderr)
        self.assertEqual(sorted(p.name for p in self.directory.iterdir()), ["k.npy", "q.npy", "v.npy"])


if __name__ == "__main__":
    unittest.main()
