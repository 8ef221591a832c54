"""What tests/emulated stands in for has to have every instruction that the kernels use: it is compiled only where the
processor lacks them, so that one that is missing would be found late."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS, EMULATED = ROOT / "src/kernels/cpu", ROOT / "tests/emulated/kernels/cpu"
INTRINSIC = re.compile(r"\b(?:_mm512_|_tile_)\w+")


def intrinsics(files):
    return {name for file in files for name in INTRINSIC.findall(file.read_text())}


class Emulated(unittest.TestCase):
    def test_every_intrinsic_has_its_double(self):
        stand_ins = sorted(EMULATED.glob("*.hpp"))
        replaced = {file.name for file in stand_ins}
        kernels = [file for file in KERNELS.iterdir() if file.is_file() and file.name not in replaced]
        used = intrinsics(kernels)
        self.assertGreater(len(used), 50)
        self.assertEqual(used - intrinsics(stand_ins), set())


if __name__ == "__main__":
    unittest.main()
