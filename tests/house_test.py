#!/usr/bin/env python3
"""Who may know whom: holds every #include and every linked symbol to the rooms in CMakeLists.txt.

Without a build (or POLYHEAD_BUILD_DIR) the includes alone are read; with one, the symbols of each room's objects too,
since a room can also reach to its right by declaring a function or through a public header.
"""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

# The public headers that belong to a room: a room to its left may not include them.
DOORS = {
    "rope.h": "position",
    "adapters.h": "attention",
    "attention.h": "attention",
    "inspect.h": "inspect",
    "heads.h": "inspect",
    "kv_cache.h": "cache",
    "paged_cache.h": "cache",
    "sliding_cache.h": "cache",
    "cache_file.h": "cache",
    "code_frame.h": "frames",
    "layer.h": "layers",
    "latent.h": "layers",
    "sliding_attention.h": "layers",
    "explain.h": "inspect",
    "cost.h": "cost",
    "polyhead_c.h": "capi",
    "polyhead_cache_c.h": "capi",
    "polyhead_frames_c.h": "capi",
    "polyhead_inspect_c.h": "capi",
    "polyhead_layer_c.h": "capi",
}

# Those that hold plain types: open to every room.
PLAIN = {"error.h", "executor.h", "isa.h", "kv_view.h", "mask.h", "modifiers.h", "options.h", "tree_mask.h", "types.h",
         "version.h"}

# Outside headers and the only places that may include them; they are nowhere in include/.
OUTSIDE = [
    (re.compile(r"^\w*intrin\.h$|^arm_(neon|sve)\.h$"), ("src/kernels/", "bench/ceilings/", "tests/emulated/")),
    (re.compile(r"^(thread|mutex|shared_mutex|condition_variable|future|barrier|latch|semaphore|pthread\.h)$"),
     ("src/base/", "src/attention/", "src/cache/", "src/layers/", "src/capi/", "cli/", "tests/", "bench/",
      "examples/")),
    (re.compile(r"^nlohmann/"), ("src/models/", "cli/", "tests/", "bench/")),
    (re.compile(r"^utf8proc\.h$"), ("src/models/",)),
    (re.compile(r"^CLI/"), ("cli/",)),
    (re.compile(r"^(gtest|gmock)/"), ("tests/",)),
    (re.compile(r"^benchmark/"), ("bench/",)),
]


def read_rooms(cmake_text):
    """{room: the rooms it may know}, from the polyhead_room lines."""
    rooms = {}
    for arguments in re.findall(r"^polyhead_room\(([^)]*)\)", cmake_text, re.M):
        name, *rest = arguments.split()
        known = [word for word in rest if word not in ("KNOWS", "PROGRAM_ONLY")]
        rooms[name] = set(known) | {name}
    return rooms


def place_of(path, rooms):
    """(room or None, what a file under the repository root may know; None for everything)."""
    top, *rest = path.parts
    if top == "src":
        return rest[0], rooms.get(rest[0], set())
    if top in ("include", "examples"):
        return top, set()
    return top, None  # cli, tests and bench look everywhere


def include_violations(root, rooms):
    found = []
    files = sorted(p for p in Path(root).rglob("*")
                   if p.suffix in (".h", ".hpp", ".c", ".cpp", ".inc")
                   and p.relative_to(root).parts[0] in
                   ("include", "src", "cli", "examples", "bench", "tests"))
    for file in files:
        path = file.relative_to(root)
        room, known = place_of(path, rooms)
        if path.parts[0] == "src" and room not in rooms:
            found.append(f"{path}: src/{room} is no room of CMakeLists.txt")
            continue
        for bracket, name in INCLUDE.findall(file.read_text()):
            complaint = judge(path, room, known, bracket, name, rooms)
            if complaint:
                found.append(f"{path}: includes {name}: {complaint}")
    return found


def judge(path, room, known, bracket, name, rooms):
    """Why the file may not include `name`, or None."""
    if ".." in Path(name).parts:
        return "includes start at src/, include/ or the file's own folder"
    for pattern, places in OUTSIDE:
        if pattern.search(name):
            allowed = any(path.as_posix().startswith(place) for place in places)
            return None if allowed else "only " + ", ".join(places) + " may"
    if known is None:
        return None
    first = name.split("/")[0]
    if first == "polyhead":
        owner = DOORS.get(name.split("/")[-1])
        if path.parts[0] == "src" and owner and owner not in known:
            return f"{room} may not know {owner}"
        return None
    if room == "include":
        return "public headers include each other and the standard library alone" if "/" in name \
            or bracket == '"' else None
    if first in rooms and first not in known:
        return f"{room} may not know {first}"
    if first in ("cli", "tests", "bench"):
        return f"{room} may not know {first}"
    return None


def symbol_violations(defined, undefined, rooms):
    """defined, undefined: {room: set of symbols}. A room may need what itself or a known room defines."""
    owners = {}
    for room, symbols in defined.items():
        for symbol in symbols:
            owners.setdefault(symbol, set()).add(room)
    return sorted(f"{room} needs {symbol}, which {'/'.join(sorted(owners[symbol]))} defines"
                  for room, symbols in undefined.items() for symbol in symbols
                  if symbol in owners and not owners[symbol] & rooms[room])


def read_symbols(build, room):
    """(defined, undefined) global symbols of a room's objects in the build folder."""
    objects = [str(p) for p in Path(build, "CMakeFiles", f"polyhead_{room}.dir").rglob("*.o")]
    defined, undefined = set(), set()
    if objects:
        text = subprocess.run(["nm", "-g", *objects], check=True, capture_output=True, text=True).stdout
        for line in text.splitlines():
            match = re.match(r"^[0-9a-f ]*\s([A-Za-z])\s(\S+)$", line)
            if match:
                (undefined if match[1] == "U" else defined).add(match[2])
    return defined, undefined - defined


class House(unittest.TestCase):
    def test_includes_follow_the_arrows(self):
        rooms = read_rooms((ROOT / "CMakeLists.txt").read_text())
        self.assertIn("kernels", rooms)
        self.assertEqual(include_violations(ROOT, rooms), [])

    def test_every_public_header_is_a_rooms_or_plain(self):
        headers = {path.name for path in (ROOT / "include" / "polyhead").glob("*.h")}
        self.assertEqual(headers, PLAIN | set(DOORS))
        self.assertFalse(PLAIN & set(DOORS))

    def test_symbols_follow_the_arrows(self):
        build = Path(os.environ.get("POLYHEAD_BUILD_DIR", ROOT / "build"))
        if not (build / "CMakeFiles").exists():
            self.skipTest("no build to read")
        rooms = read_rooms((ROOT / "CMakeLists.txt").read_text())
        symbols = {room: read_symbols(build, room) for room in rooms}
        self.assertTrue(symbols["base"][0], "no symbols were read")
        defined = {room: s[0] for room, s in symbols.items()}
        undefined = {room: s[1] for room, s in symbols.items()}
        self.assertEqual(symbol_violations(defined, undefined, rooms), [])

    def test_public_headers_export_what_they_declare(self):
        for header in sorted((ROOT / "include" / "polyhead").glob("*.h")):
            text = header.read_text()
            if "namespace polyhead" in text:
                for half in ("push(default)", "pop"):
                    self.assertEqual(text.count(f"#pragma GCC visibility {half}\n"), 1, (header.name, half))

    def test_the_shared_library_shows_the_door_alone(self):
        library = Path(os.environ.get("POLYHEAD_LIBRARY", ROOT / "build" / "libpolyhead.so"))
        if not library.exists():
            self.skipTest("no build to read")
        shown = subprocess.run(["nm", "-DC", "--defined-only", str(library)], check=True,
                               capture_output=True, text=True).stdout
        self.assertIn("polyhead::v0::version()", shown)
        inner = re.findall(r".* [TBDRVW] polyhead::v0::(?!cost::)[a-z]\w*::.*", shown)  # door::, kernels::, ...
        self.assertEqual(inner, [])


class HouseFindsWhatIsForbidden(unittest.TestCase):
    ROOMS = read_rooms("polyhead_room(base)\npolyhead_room(kernels KNOWS base)\n"
                       "polyhead_room(attention KNOWS kernels base)\n")

    def complaints(self, path, text):
        with tempfile.TemporaryDirectory() as root:
            file = Path(root, path)
            file.parent.mkdir(parents=True)
            file.write_text(text)
            return include_violations(root, self.ROOMS)

    def test_allowed(self):
        for path, text in [
            ("src/attention/a.cpp", '#include "kernels/contract.hpp"\n#include "attention/plan.hpp"\n#include <array>'),
            ("src/kernels/k.cpp", '#include <immintrin.h>\n#include "polyhead/mask.h"'),
            ("tests/a_test.cpp", '#include <gtest/gtest.h>\n#include "attention/plan.hpp"'),
        ]:
            self.assertEqual(self.complaints(path, text), [], path)

    def test_forbidden(self):
        for path, text in [
            ("src/kernels/k.cpp", '#include "attention/plan.hpp"'),
            ("src/kernels/k.cpp", '  #  include <attention/plan.hpp>'),
            ("src/base/b.cpp", '#include "polyhead/attention.h"'),
            ("src/base/b.cpp", '#include "../kernels/contract.hpp"'),
            ("src/attention/a.cpp", '#include <immintrin.h>'),
            ("src/attention/a.cpp", '#include <nlohmann/json.hpp>'),
            ("src/attention/a.cpp", '#include "cli/main.hpp"'),
            ("src/cellar/c.cpp", ''),
            ("include/polyhead/x.h", '#include <thread>'),
            ("include/polyhead/x.h", '#include "base/memory.hpp"'),
            ("examples/e.cpp", '#include "attention/plan.hpp"'),
        ]:
            self.assertEqual(len(self.complaints(path, text)), 1, (path, text))

    def test_symbols(self):
        defined = {"base": {"allocate"}, "attention": {"attend"}}
        self.assertEqual(symbol_violations(defined, {"attention": {"allocate", "malloc"}}, self.ROOMS), [])
        self.assertEqual(len(symbol_violations(defined, {"kernels": {"attend"}}, self.ROOMS)), 1)


if __name__ == "__main__":
    unittest.main()
