#!/usr/bin/env python3
"""Folders of an install that are not the usual ones: what find_package and pkg-config will say of them."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY_ALONE = [f"-DPOLYHEAD_BUILD_{part}=OFF" for part in ("TESTS", "CLI", "BENCH", "EXAMPLES")]


class InstallFolders(unittest.TestCase):
    def configured(self, **folders):
        """The .pc file and the exported targets of a build of the library alone, which is not built."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        chosen = [f"-DCMAKE_INSTALL_{name}={folder}" for name, folder in folders.items()]
        subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", scratch.name, *LIBRARY_ALONE, *chosen], check=True,
                       stdout=subprocess.DEVNULL)
        targets, = Path(scratch.name).glob("CMakeFiles/Export/*/polyheadTargets.cmake")
        return (Path(scratch.name) / "polyhead.pc").read_text().splitlines(), targets.read_text()

    def test_headers_in_a_folder_of_their_own(self):
        pc, targets = self.configured(LIBDIR="lib/here", INCLUDEDIR="include/there")
        self.assertEqual(pc[:3], ["prefix=${pcfiledir}/../../../", "libdir=${prefix}/lib/here",
                                  "includedir=${prefix}/include/there"])
        self.assertIn('INTERFACE_INCLUDE_DIRECTORIES "${_IMPORT_PREFIX}/include/there"', targets)

    def test_whole_paths(self):
        pc, targets = self.configured(PREFIX="/opt/polyhead", LIBDIR="/opt/lib", INCLUDEDIR="/opt/include")
        self.assertEqual(pc[:3], ["prefix=/opt/polyhead", "libdir=/opt/lib", "includedir=/opt/include"])
        self.assertIn('INTERFACE_INCLUDE_DIRECTORIES "/opt/include"', targets)


if __name__ == "__main__":
    unittest.main()
