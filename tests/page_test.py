#!/usr/bin/env python3
"""The head page in a real Chromium: what it shows against the arrays it was made from."""
import unittest

import numpy as np

import page_file
from page_case import VIEWS, PageCase


class PageTest(PageCase):
    def test_whole_rows_equal_the_reference(self):
        path, run, meta = self.page("whole", layers=2, heads=4, kv=2, nq=126)
        self.assertLess(meta["errors"]["weight"], 0.004)
        for l, h, i in ((0, 0, 0), (0, 3, 77), (1, 2, 125)):
            self.show(path, meta, v="head", a=f"{l}.{h}", q=i)
            table, rest = self.row_table()
            self.assertEqual(sorted(table), list(range(i + 1)))
            self.assertEqual(rest, 0)
            shown = np.array([table[j] for j in range(i + 1)])
            self.assertLess(abs(shown - run.weights[l][h, i, :i + 1]).max(), meta["errors"]["weight"] + 5.1e-5)
            self.assertLess(abs(shown.sum() - 1), meta["errors"]["row_sum"] + 5.1e-5 * len(shown))

    def test_sparse_rows_keep_the_largest_and_say_the_rest(self):
        path, run, meta = self.page("sparse", layers=1, heads=2, kv=2, nq=200, sharp=1.5, page={"form": "sparse"})
        for h, i in ((0, 199), (1, 120)):
            self.show(path, meta, v="head", a=f"0.{h}", q=i)
            table, rest = self.row_table()
            row = run.weights[0][h, i]
            expected = set(np.flatnonzero(row >= 0.01)) | set(np.argsort(-row)[:4])
            self.assertEqual(set(table), {int(j) for j in expected})
            for j, w in table.items():
                self.assertLess(abs(w - row[j]), 2e-5 + 5.1e-5)
            self.assertLess(abs(sum(table.values()) + rest - 1), 1e-3)

    def test_modes_of_weights(self):
        path, run, meta = self.small()
        l, h, i = 1, 2, 9
        row = run.weights[l][h, i, :i + 1].astype(float)
        size = row * np.linalg.norm(run.v[l][h // 2], axis=-1)[:i + 1]
        wanted = {"nofirst": np.concatenate([[0], row[1:] / row[1:].sum()]), "value": size / size.sum()}
        for mode, expected in wanted.items():
            self.show(path, meta, v="head", a=f"{l}.{h}", q=i, w=mode)
            table, _ = self.row_table()
            shown = np.array([table.get(j, 0) for j in range(i + 1)])
            self.assertLess(abs(shown - expected).max(), 0.02, mode)
            self.assertAlmostEqual(shown.sum(), 1, delta=0.002)

    def test_steps_agree_with_weights(self):
        path, run, meta = self.small()
        self.show(path, meta, v="query", a="2.1", q=11)
        rows = self.browser.js("cells($('.steps table'))")
        weight = rows[0].index("weight")
        keys = {int(r[0].split(" ")[0]): float(r[weight]) for r in rows[1:] if r[0].split(" ")[0].isdigit()
                and "other" not in r[0] and "later" not in r[0]}
        self.assertEqual(len(keys), 10)
        for j, w in keys.items():
            self.assertLess(abs(w - run.weights[2][1, 11, j]), 0.002)
        self.assertIn("2 other keys", [r[0] for r in rows])
        self.assertIn("2 later keys", [r[0] for r in rows])
        self.assertEqual(rows[-1][weight], "1.0000")
        products = {int(r[0].split(" ")[0]): float(r[rows[0].index("q·k")]) for r in rows[1:11]}
        for j, product in products.items():
            self.assertAlmostEqual(product, float(run.q[2][1, 11] @ run.k[2][0, j]), delta=2e-3)

    def test_a_soft_cap_is_a_step_of_its_own(self):
        path, run, meta = self.page("soft-capped", layers=1, heads=2, kv=1, nq=9, soft_cap=0.7)
        self.show(path, meta, v="query", a="0.1", q=8)
        rows = self.browser.js("cells($('.steps table'))")
        column = lambda name: np.array([float(r[rows[0].index(name)]) for r in rows[1:10]])
        order = [int(r[0].split(" ")[0]) for r in rows[1:10]]
        self.assertLess(abs(column("weight") - run.weights[0][1, 8, order]).max(), 0.002)
        self.assertLess(abs(column("soft-capped") - 0.7 * np.tanh(column("scaled") / 0.7)).max(), 0.002)
        self.assertGreater(column("scaled").max(), 2)
        titles = []
        for _ in range(8):
            self.browser.js("[...$$('.controls button')].find(b => b.textContent === 'Next').click()")
            titles.append(self.browser.js("$('.lesson b').textContent"))
        self.assertEqual(titles[2], "3 of 8: soft-capped. ")
        self.assertEqual(titles[-1], "8 of 8: w·|v|. ")
        path, _, meta = self.small()
        self.show(path, meta, v="query", a="2.1", q=11)
        self.assertNotIn("soft-capped", self.browser.js("cells($('.steps table'))")[0])

    def test_compare_shows_both_and_their_difference(self):
        path, run, meta = self.small()
        self.show(path, meta, v="compare", a="0.1", b="2.3", q=10)
        for row in self.browser.js("cells($('.keys table'))")[1:-1]:
            j = int(row[0].split(" ")[0])
            a, b = run.weights[0][1, 10, j], run.weights[2][3, 10, j]
            self.assertLess(abs(float(row[1]) - a), 0.005)
            self.assertLess(abs(float(row[2]) - b), 0.005)
            self.assertLess(abs(float(row[3].replace("−", "-")) - (a - b)), 0.009)
        differ = self.browser.js("cells($$('.facts table')[1])")[1]
        halves = abs(run.weights[0][1] - run.weights[2][3]).sum(-1) / 2
        self.assertAlmostEqual(float(differ[1]), halves.max(), delta=0.01)

    def test_measures_on_the_page(self):
        path, run, meta = self.small()
        self.show(path, meta, v="heads")
        self.browser.js("$$('.as-table')[0].open = true")
        self.browser.settle()
        rows = self.browser.js("cells($('.wide-table table'))")
        first = rows[0].index("First token")
        for n, row in enumerate(rows[1:]):
            l, h = divmod(n, run.heads)
            self.assertEqual(row[0], f"{l}.{h}")
            self.assertAlmostEqual(float(row[first]), run.weights[l][h, 1:, 0].mean(), delta=0.0051)

    def test_what_cannot_be_measured_is_not_zero(self):
        tokens = [f" word{i}" for i in range(9)]
        path, _, meta = self.page("unique", lambda: page_file.random_run(1, 2, 2, 9, tokens=tokens),
                                  page={"ids": list(range(9))})
        self.show(path, meta, v="head", a="0.0")
        rows = {r[0]: r[1] for r in self.browser.js("cells($('.measure-table'))")[1:]}
        self.assertEqual(rows["Induction"], "not measurable")
        self.assertNotEqual(rows["Previous"], "not measurable")

    def test_masks(self):
        words = [f" key{j}" for j in range(9)]
        for name, how in {"bidirectional": {"mask": "none"}, "window": {"window": 4},
                          "multi-query": {"kv": 1}, "multi-head": {"kv": 4}}.items():
            with self.subTest(name):
                path, run, meta = self.page(name, layers=1, heads=4, nq=12, **{"kv": 2, **how})
                self.show(path, meta, v="head", a="0.3", q=7)
                table, _ = self.row_table()
                seen = page_file.visible(12, 12, run.mask, run.windows[0])[7]
                self.assertEqual(sorted(table), list(np.flatnonzero(seen)))
                for j, w in table.items():
                    self.assertLess(abs(w - run.weights[0][3, 7, j]), 0.005)
        path, run, meta = self.page("cross", lambda: page_file.random_run(
            1, 2, 2, 5, 9, mask="none", tokens=[f" q{i}" for i in range(5)], key_tokens=words))
        for view in VIEWS:
            self.show(path, meta, v=view, q=3, k=8)
        self.show(path, meta, v="head", a="0.1", q=3)
        table, _ = self.row_table()
        self.assertEqual(sorted(table), list(range(9)))
        self.assertAlmostEqual(table[8], run.weights[0][1, 3, 8], delta=0.005)
        self.assertEqual(self.browser.js("$$('.prose').length"), 2)

    def test_rows_left_out(self):
        path, _, meta = self.page("maps", layers=1, heads=2, kv=2, nq=40, page={"form": "sparse", "steps": False,
                                                                               "map_only": {(0, 1)}})
        for view in VIEWS:
            self.show(path, meta, v=view, a="0.1", b="0.0", q=20, k=3)
        self.show(path, meta, v="head", a="0.1")
        self.assertIn("left out", self.browser.js("$('.trouble').innerText"))

    def test_heads_without_rows_keep_their_thumbnail_and_have_no_difference(self):
        path, _, meta = self.page("maps among rows", layers=2, heads=4, kv=2, nq=150, seed=3,
                                  page={"form": "sparse", "map_only": {(1, 0), (1, 1)}})
        pixels = "(() => {const cell = $('[data-head=\"4\"]'), context = $('.grid-room canvas').getContext('2d');" \
                 "return [...context.getImageData(cell.offsetLeft + 2, cell.offsetTop + 2, 30, 30).data].join()})()"
        self.show(path, meta, v="heads", w="raw")
        expected = self.browser.js(pixels)
        for mode in ("nofirst", "value"):
            self.show(path, meta, v="heads", w=mode)
            self.browser.wait("$('.controls [role=status]').textContent === ''")
            self.assertEqual(self.browser.js(pixels), expected, mode)
        for a, b in (("1.0", "0.2"), ("0.2", "1.0"), ("1.0", "1.1")):
            self.show(path, meta, v="compare", a=a, b=b, q=20, k=3)
            self.assertIn("left out", self.browser.js("$('figure[data-side=d] .hint').innerText"))
            self.assertEqual(self.browser.js("$$('figure .map').map(shown)"), [True, True, False])
        self.go(v="compare", a="0.1", b="0.2", q=20)
        self.assertEqual(self.browser.js("$$('figure .map').map(shown)"), [True, True, True])
        self.assertEqual(self.browser.js("$('figure[data-side=d] .hint').innerText"), "")

    def test_heads_not_asked_for(self):
        path, _, meta = self.page("part", layers=2, heads=2, kv=2, nq=20,
                                  page={"not_asked": {(0, 0), (0, 1), (1, 1)}})
        self.show(path, meta, v="about")
        about = self.browser.js("$('.about').innerText")
        self.assertIn("3 heads were not asked for", about)
        self.assertNotIn("left out to keep the file small", about)
        self.show(path, meta, v="head", a="1.0")
        ranks = [r[3] for r in self.browser.js("cells($('.measure-table'))")[1:] if r[3]]
        self.assertEqual(set(ranks), {"1 of 1"})
        self.go(v="head", a="0.1", q=5, k=2)
        self.assertIn("not asked for", self.browser.js("$('.trouble').innerText"))
        self.assertIn("Not asked for", self.browser.js("$('.role').innerText"))
        self.assertFalse(self.browser.js("shown($('.map'))"))
        self.go(v="compare", a="1.0", b="0.1", q=5, k=2)
        self.assertEqual(self.browser.js("$$('figure .map').map(shown)"), [True, False, False])
        for side in "bd":
            self.assertIn("not asked for", self.browser.js(f"$('figure[data-side={side}] .hint').innerText"))
        self.go(v="query", a="0.1", q=5)
        self.assertIn("not asked for", self.browser.js("$('main').innerText"))
        self.go(v="heads", m="link", q=5, k=2, r="ranked", a="0.1")
        self.assertEqual([x.split(" ", 1)[1] for x in self.browser.js("$$('.under').map(n => n.textContent)")][1:],
                         ["not asked for"] * 3)

    def test_no_rank_where_all_are_alike(self):
        path, _, meta = self.page("n1", layers=2, heads=2, kv=1, nq=1, page={"steps": True})
        self.show(path, meta, v="head")
        rows = {r[0]: r for r in self.browser.js("cells($('.measure-table'))")[1:]}
        self.assertEqual(rows["Entropy (bits)"][1::2], ["0.00", ""])

    def test_compare_where_a_has_a_window(self):
        path, run, meta = self.sliding()
        drawn = {}
        for a, b in (("0.0", "1.1"), ("1.1", "0.0")):
            self.show(path, meta, v="compare", a=a, b=b, q=30, k=2)
            drawn[a] = self.browser.js(
                "(() => {const {width, height} = $('figure[data-side=d] canvas');"
                "const {data} = $('figure[data-side=d] canvas').getContext('2d').getImageData(0, 0, width, height);"
                "return [[30, 2], [2, 30]].map(([q, k]) => 4 * (Math.floor((q + .5) * height / 40) * width"
                " + Math.floor((k + .5) * width / 40))).map((at) => data.slice(at, at + 3).join())})()")
            sides = dict(zip((a, b), self.browser.js("$$('.pair b').map(n => n.innerText)")))
            self.assertEqual(sides["0.0"], "cannot be seen")
            self.assertAlmostEqual(float(sides["1.1"]), run.weights[1][1, 30, 2], delta=0.005)
            rows = self.browser.js("cells($('.keys table'))")[1:]
            self.assertEqual(rows[-1][0], f"the other {31 - (len(rows) - 1)}")
        for a, (seen, future) in drawn.items():
            self.assertNotEqual(seen, future, f"A = {a}")

    def test_weights_that_are_not_there_say_why(self):
        path, run, meta = self.page("sparse", layers=1, heads=2, kv=2, nq=200, sharp=1.5, page={"form": "sparse"})
        row = run.weights[0][0, 199]
        key = int(np.argmin(row))
        words = "not kept (< 0.01)"
        for direction in ("out", "in"):
            self.show(path, meta, v="head", a="0.0", q=199, k=key, d=direction)
            self.assertIn(f": {words}", self.browser.js("$('.pair').innerText"))
        self.go(v="head", a="0.0", q=20, k=30)
        self.assertIn(": cannot be seen", self.browser.js("$('.pair').innerText"))
        self.go(v="compare", a="0.0", b="0.1", q=199, k=key)
        self.assertIn(f"A {words}", self.browser.js("$('.pair').innerText"))
        self.go(v="compare", a="0.0", b="0.1", q=199)
        for cells in self.browser.js("cells($('.keys table'))")[1:-1]:
            j = int(cells[0].split(" ")[0])
            for side, x in enumerate(cells[1:3]):
                w = run.weights[0][side, 199, j]
                self.assertTrue(x == words and w < 0.01 or abs(float(x) - w) < 6e-4, cells)
            self.assertEqual(cells[3] == "", words in cells[1:3])
        self.go(v="heads", m="link", r="ranked", q=199, k=key)
        self.assertIn(f"0.0 {words}", self.browser.js("$$('.under').map(n => n.textContent)"))
        self.go(v="heads", m="link", r="ranked", q=20, k=30)
        self.assertIn("0.0 cannot be seen", self.browser.js("$$('.under').map(n => n.textContent)"))

    def test_the_size_of_values_that_were_not_kept_is_not_summed(self):
        path, _, meta = self.page("sparse without steps", layers=1, heads=2, kv=2, nq=200, sharp=1.5,
                                  page={"form": "sparse", "steps": False})
        self.show(path, meta, v="query", a="0.0", q=199)
        rows = self.browser.js("cells($('.steps table'))")
        mixed = rows[0].index("w·|v|")
        self.assertRegex(rows[1][mixed], r"^0\.\d{4}$")
        others = next(r for r in rows if "other key" in r[0])
        self.assertEqual((others[mixed], rows[-1][mixed]), ("not kept", "not kept"))
        self.assertAlmostEqual(float(rows[-1][rows[0].index("weight")]), 1, delta=1e-3)

    def test_too_little_left_without_the_first_key(self):
        def run():
            made = page_file.random_run(1, 2, 2, 60, seed=5)
            rest = made.weights[0].copy()
            rest[:, :, 0] = 0
            left = np.where(np.arange(60) % 2, 0.005, 0.02)[None, :, None]
            total = rest.sum(-1, keepdims=True)
            made.weights[0] = rest * left / np.where(total > 0, total, 1)
            made.weights[0][:, :, 0] = 1 - made.weights[0].sum(-1)
            return made
        path, made, meta = self.page("resting", run)
        self.show(path, meta, v="head", a="0.0", q=51, k=7, w="nofirst")
        self.assertIn(": too little left", self.browser.js("$('.pair').innerText"))
        self.assertEqual(self.browser.js("cells($('.keys table'))")[-1][1], "too little left")
        self.browser.js("$('.map-place .as-table').open = true")
        self.browser.settle()
        self.assertEqual(self.browser.js("cells($('.map-place .as-table table'))")[1:],
                         [["keys but the first", "too little left"]])
        self.go(v="compare", a="0.0", b="0.1", q=51, k=7, w="nofirst")
        self.assertIn("A too little left, B too little left", self.browser.js("$('.pair').innerText"))
        self.go(v="head", a="0.0", q=50, w="nofirst")
        table, _ = self.row_table()
        row = made.weights[0][0, 50, 1:51]
        self.assertEqual(sorted(table), list(range(1, 51)))
        shown = np.array([table[j] for j in range(1, 51)])
        self.assertLess(abs(shown - row / row.sum()).max(), 0.05)
        self.go(v="about")
        self.assertIn("too little left", self.browser.js("$('.about').innerText"))

    def test_a_role_that_no_head_has(self):
        path, _, meta = self.small()
        absent = next(r for r in page_file.TARGETS if r not in meta["roles"])
        self.show(path, meta, v="heads", r="ranked", role=absent)
        self.assertEqual(self.browser.js("$$('.cell').length"), 12)


if __name__ == "__main__":
    unittest.main()
