#!/usr/bin/env python3
"""The head page in a real Chromium: what it shows against the arrays it was made from, and how it behaves."""
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np

import page_file
from browser import CHROMIUM, Browser, axe_source

VIEWS = ["heads", "head", "compare", "query", "about"]
HELPERS = """
window.root = () => document.getElementById('page').shadowRoot;
window.$ = (s) => root().querySelector(s);
window.$$ = (s) => [...root().querySelectorAll(s)];
window.shown = (node) => node && node.getClientRects().length > 0;
window.boxOf = (node) => { const b = node.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; };
window.middle = (node) => { node.scrollIntoView({block: 'center'}); const b = node.getBoundingClientRect();
  return [b.left + b.width / 2, b.top + b.height / 2]; };
window.cells = (table) => [...table.querySelectorAll('tr')].map((tr) => [...tr.children].map((c) => c.textContent));
true;
"""


@unittest.skipUnless(CHROMIUM, "needs Chromium (scripts/setup test)")
class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.browser = Browser()
        cls.made = {}

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.folder.cleanup()

    def setUp(self):
        self.browser.log.clear()
        self.browser.size(1280, 900)

    def tearDown(self):
        self.assertEqual(self.browser.log, [], "exceptions, console messages or requests")

    def write(self, name, text):
        path = Path(self.folder.name) / f"{name}.html"
        path.write_text(text)
        return path

    def page(self, name, run=None, **how):
        """The path of a page of random numbers and what it was made from."""
        if name not in self.made:
            made = run() if run else page_file.random_run(**{k: v for k, v in how.items() if k != "page"})
            path = self.write(name, page_file.page(made, **how.get("page", {})))
            meta = json.loads(path.read_text().split('id="meta">')[1].split("</script>")[0])
            self.made[name] = (path, made, meta)
        return self.made[name]

    def small(self):
        return self.page("small", layers=3, heads=4, kv=2, nq=14)

    def show(self, path, meta, **state):
        parts = "&".join(f"{k}={v}" for k, v in {**state, "f": meta["file"]}.items())
        self.browser.open(f"file://{path}#{parts}")
        self.browser.js(HELPERS)
        return self.browser

    def go(self, **state):
        """Changes the address of the page that is open."""
        parts = "&".join(f"{k}={v}" for k, v in state.items())
        self.browser.js(f"location.hash = {parts!r} + '&f=' + new URLSearchParams(location.hash.slice(1)).get('f'); true")
        self.browser.settle()

    def hash(self):
        return dict(p.split("=", 1) for p in self.browser.js("location.hash.slice(1)").split("&"))

    def row_table(self, query=None):
        """{key: weight} of the table behind the map."""
        self.browser.js("$('.map-place .as-table').open = true")
        self.browser.settle()
        rows = self.browser.js("cells($('.map-place .as-table table'))")[1:]
        named = {r[0].split(" ")[0]: float(r[1]) for r in rows}
        return {int(k): w for k, w in named.items() if k.isdigit()}, named.get("keys", 0.0)

    def test_every_size_and_view(self):
        for n in (1, 5, 126, 512, 2048):
            with self.subTest(tokens=n):
                layers = 1 if n > 500 else 2
                path, _, meta = self.page(f"n{n}", layers=layers, heads=2, kv=1, nq=n, page={"steps": n < 500})
                self.show(path, meta)
                for view in VIEWS:
                    self.go(v=view, f=meta["file"], q=n // 2, k=0)
                    self.assertEqual(self.browser.js("root().querySelectorAll('.trouble').length"), 0, view)
                    self.assertGreater(self.browser.js("root().querySelector('main').innerText.length"), 50)

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

    def test_lock_by_mouse_touch_and_keys(self):
        path, _, meta = self.small()
        browser = self.show(path, meta, v="head", a="0.0")
        self.assertNotIn("q", self.hash())
        x, y = browser.js("middle($$('.prose .token')[6])")
        browser.mouse(x, y, click=True)
        self.assertEqual(self.hash()["q"], "6")
        self.assertIn("locked: 6", browser.js("$('.locked').innerText"))
        self.assertIn("query 6", browser.js("$('[aria-live]').textContent"))
        browser.mouse(x, y, click=True)
        self.assertNotIn("q", self.hash())
        browser.touch(*browser.js("middle($$('.prose .token')[4])"))
        self.assertEqual(self.hash().get("q"), "4")
        browser.key("Escape")
        self.assertNotIn("q", self.hash())
        browser.js("$('.map').focus()")
        for name in ("ArrowUp", "ArrowLeft", "Enter"):
            browser.key(name)
        self.assertEqual((self.hash()["q"], self.hash()["k"]), ("12", "11"))
        browser.mouse(*browser.js("middle($('.locked'))"), click=True)
        self.assertNotIn("q", self.hash())

    def test_keyboard(self):
        path, _, meta = self.small()
        browser = self.show(path, meta, v="heads", a="0.0", b="1.1")
        self.assertEqual(browser.js("$$('.cell[tabindex=\"0\"]').length"), 1)
        browser.js("$('.cell[tabindex=\"0\"]').focus()")
        browser.key("ArrowRight")
        browser.key("ArrowDown")
        self.assertEqual(browser.js("root().activeElement.getAttribute('aria-label').slice(0, 15)"), "layer 1, head 1")
        browser.key("c")
        self.assertEqual(self.hash().get("b", meta), "1.1")
        browser.key("Enter")
        self.assertEqual((self.hash()["v"], self.hash()["a"]), ("head", "1.1"))
        browser.key("]")
        self.assertEqual(self.hash()["a"], "1.2")
        browser.key("[")
        browser.key("x")
        self.assertEqual(self.hash()["w"], "nofirst")
        browser.key("t")
        self.assertIn(self.hash()["t"], ("dark", "light"))
        browser.key("?")
        self.assertTrue(browser.js("$('dialog').open"))
        browser.key("Escape")
        self.assertFalse(browser.js("$('dialog').open"))

    def test_history_and_links(self):
        path, _, meta = self.small()
        browser = self.show(path, meta, v="heads")
        browser.send("Page.resetNavigationHistory")
        start = browser.js("history.length")
        browser.mouse(*browser.js("middle($$('nav button')[1])"), click=True)
        browser.js("$$('.head-choice select')[1].value = '2'; "
                   "$$('.head-choice select')[1].dispatchEvent(new Event('change')); true")
        self.assertEqual(browser.js("history.length"), start + 1)
        browser.js("history.back()")
        browser.wait("new URLSearchParams(location.hash.slice(1)).get('v') === 'heads'")
        browser.settle()
        self.assertTrue(browser.js("shown($('.grid-scroll'))"))
        state = {"v": "compare", "a": "1.0", "b": "2.3", "q": "8", "k": "3", "w": "value", "z": "2,1,8", "s": "linear",
                 "t": "dark"}
        self.show(path, meta, **state)
        kept = {k: v.replace("%2C", ",") for k, v in self.hash().items() if k != "f"}
        self.assertEqual(kept, state)
        browser.js("$$('.chip').length; true")
        browser.open(f"file://{path}#v=head&a=1.0&f=another")
        browser.js(HELPERS)
        self.assertIn("another page", browser.js("$('.notice').innerText"))
        self.assertTrue(browser.js("shown($('.grid-scroll'))"))
        self.show(path, meta, v="nonsense", a="9.9", q="-1", k="1e9", w="<b>", z="a,b,c")
        self.assertTrue(browser.js("shown($('.grid-scroll'))"))

    def test_nothing_moves_on_hover(self):
        path, _, meta = self.page("hover", layers=4, heads=4, kv=2, nq=60)
        boxes = "$$('button,select,canvas,table,.prose,.token,h2,h3,.dock,.map').filter(shown)" \
                ".filter(n => !n.closest('table,ol,.keys,.pair')).map(boxOf).map(String)"
        for view, targets in (("heads", ".cell"), ("head", ".token"), ("compare", ".token")):
            browser = self.show(path, meta, v=view, q=50, k=3)
            browser.js("$(" + json.dumps(targets) + ").scrollIntoView({block: 'center'}); true")
            before = browser.js(boxes)
            for n in (1, 5, 9, 14):
                x, y = browser.js(f"(() => {{const b = $$('{targets}')[{n}].getBoundingClientRect();"
                                  "return [b.left + b.width / 2, b.top + b.height / 2]})()")
                browser.mouse(x, y)
                after = browser.js(boxes)
                if view == "heads":  # the dock's own titles and texts change
                    continue
                self.assertEqual(after, before, f"{view} {n}")
        browser = self.show(path, meta, v="heads")
        places = "[...$$('.cell'), $('.dock'), ...$$('.chip')].map(boxOf).map(String)"
        before = browser.js(places)
        for n in (0, 7, 12):
            browser.mouse(*browser.js(f"(() => {{const [x, y, w, h] = boxOf($$('.cell')[{n}]); return [x + w / 2, y + h / 2]}})()"))
            self.assertEqual(browser.js(places), before)

    def test_widths_and_themes(self):
        path, _, meta = self.page("wide", layers=30, heads=9, kv=3, nq=40, page={"steps": True})
        # 700 at 2: a wide window at 200 %
        for width, ratio in ((360, 1), (700, 2), (768, 1), (900, 1), (1024, 1), (1200, 1), (1400, 1)):
            self.browser.size(width, 800, ratio)
            for theme in ("light", "dark"):
                for view in VIEWS:
                    with self.subTest(width=width, view=view, theme=theme):
                        self.show(path, meta, v=view, t=theme, q=30, k=4)
                        self.assertLessEqual(self.browser.js("document.documentElement.scrollWidth"), width)
                        ranks = self.browser.js("$$('td.rank').filter(shown).map(n => n.getBoundingClientRect().right)")
                        self.assertLessEqual(max(ranks, default=0), width)

    def test_names_of_keys_stay_whole_on_a_phone(self):
        path, _, meta = self.page("words", tokens=[" dinner", " because"] * 20, nq=40, page={"steps": True})
        self.browser.size(390, 844)
        self.show(path, meta, v="query", q=30)
        self.assertEqual(set(self.browser.js("$$('.steps tbody th bdi').map(n => n.getClientRects().length)")), {1})

    def test_targets_are_large_enough(self):
        path, _, meta = self.small()
        for width, least in ((1280, 24), (360, 40)):
            self.browser.size(width, 800)
            for view in VIEWS:
                self.show(path, meta, v=view, q=5, k=2)
                small = self.browser.js("$$('button,select,summary').filter(shown).map(n => [n.className || n.tagName, "
                                        f"...boxOf(n).slice(2)]).filter(([, w, h]) => w < 24 || h < {least})")
                self.assertEqual(small, [], f"{view} at {width}")

    def test_axe(self):
        source = axe_source()
        if source is None:
            self.skipTest("axe-core-python cannot be downloaded")
        path, _, meta = self.small()
        for theme in ("light", "dark"):
            for view in VIEWS:
                with self.subTest(view=view, theme=theme):
                    self.show(path, meta, v=view, q=9, k=3, t=theme)
                    self.browser.js(source + ";true")
                    found = self.browser.js(
                        "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => v.id + ': ' +"
                        "v.nodes.map(n => n.target.flat().join(' ') + ' ' + (n.any[0]?.message ?? '')).slice(0, 3)))")
                    self.assertEqual(found, [])

    def test_accessibility_tree(self):
        path, run, meta = self.small()
        self.show(path, meta, v="heads")
        nodes = self.browser.send("Accessibility.getFullAXTree")["nodes"]
        roles = [n.get("role", {}).get("value") for n in nodes]
        names = [n.get("name", {}).get("value", "") for n in nodes if n.get("role", {}).get("value") == "gridcell"]
        self.assertIn("grid", roles)
        self.assertEqual(len(names), run.layers * run.heads)
        self.assertRegex(names[5], r"layer \d, head \d, \w+.*, Induction (0\.\d\d|not measurable)")

    def test_text_of_any_kind(self):
        pieces = [b"<script>alert(1)</script>", b"</script><b>", b" &amp;", "שלום".encode(), " עולם".encode(), b"\n",
                  "مر".encode(), "حبا".encode(), b" \xf0\x9f", b"\x99", b"\x82", b"\xd9", b"\x85", b"\t", b"  ", b"\n\n",
                  "日本".encode(), b" averyveryverylongtokenindeedwithoutend", b"\xff", b"<!--"]
        path, _, meta = self.page("signs", lambda: page_file.random_run(1, 2, 2, len(pieces), tokens=pieces),
                                  page={"ids": list(range(len(pieces)))})
        self.browser.size(360, 700)
        for view in VIEWS:
            self.show(path, meta, v=view, q=len(pieces) - 1)
            self.assertEqual(self.browser.js("$$('script, main b i').length"), 0)
            self.assertLessEqual(self.browser.js("document.documentElement.scrollWidth"), 360, view)
        self.show(path, meta, v="head")
        text = self.browser.js("$('.prose').textContent")
        for part in ("<script>alert(1)</script>", "</script><b>", "&amp;", "שלום", "⟨F0⟩".replace("F0", "D9"), "م", "↵",
                     "⇥", "␣␣", "<!--", "⟨FF⟩"):
            self.assertIn(part, text)
        directions = self.browser.js("$$('.prose .line').map(n => getComputedStyle(n).direction)")
        self.assertEqual(directions[1], "rtl")

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

    def test_a_cut_file_says_so(self):
        path, _, meta = self.small()
        text = path.read_text()
        layer = text.index('<script type="text/plain" id="layer-2"')
        for name, cut, works in (("in a layer", layer + 200, True), ("before a layer", layer, True),
                                 ("in the thumbnails", text.index('id="thumbs"') + 60, False),
                                 ("in meta", text.index('id="meta"') + 200, False)):
            with self.subTest(name):
                short = self.write("cut", text[:cut])
                self.browser.open(f"file://{short}#v=heads&f={meta['file']}")
                self.browser.js(HELPERS)
                if not works:
                    self.assertNotIn("undefined", self.browser.js("document.body.innerText"))
                    continue
                self.assertEqual(self.browser.js("$$('.cell').length"), 12)
                self.go(v="head", a="1.0", q=5)
                self.assertEqual(self.browser.js("$$('.trouble').length"), 0)
                self.go(v="head", a="2.0", q=5)
                self.assertIn("layer-2", self.browser.js("$('.trouble').innerText"))

    def test_another_version_is_refused(self):
        path, _, _ = self.small()
        other = self.write("version", path.read_text().replace('"version":1', '"version":2'))
        self.browser.open(f"file://{other}")
        self.assertIn("version 2", self.browser.js("document.body.innerText"))

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

    def test_a_link_is_drawn_before_the_layers_are_read(self):
        path, _, meta = self.small()
        for state in ({"w": "nofirst"}, {"w": "value"}, {"w": "nofirst", "r": "ranked"}, {"m": "link", "q": 9, "k": 3}):
            with self.subTest(state):
                self.show(path, meta, v="heads", **state)
                self.assertEqual(self.browser.js("$$('.cell').length"), 12)
                self.browser.wait("$('.controls [role=status]').textContent === ''")

    def test_which_heads_link_after_unlocking(self):
        path, _, meta = self.small()
        self.show(path, meta, v="heads", m="link", r="ranked", q=9, k=3)
        values = "$$('.under').map(n => n.textContent)"
        first = self.browser.js(values)
        self.assertRegex(first[0], r"\d\.\d 0\.\d\d")
        self.go(v="heads", m="link", r="ranked")
        self.assertNotEqual(self.browser.js(values), first)
        self.go(v="heads", m="link", r="ranked", q=9, k=3)
        self.assertEqual(self.browser.js(values), first)

    def test_no_rank_where_all_are_alike(self):
        path, _, meta = self.page("n1", layers=2, heads=2, kv=1, nq=1, page={"steps": True})
        self.show(path, meta, v="head")
        rows = {r[0]: r for r in self.browser.js("cells($('.measure-table'))")[1:]}
        self.assertEqual(rows["Spread (bits)"][1::2], ["0.00", ""])

    def sliding(self):
        """Layer 0 with a window of 6 tokens, layer 1 without."""
        def run():
            narrow, wide = (page_file.random_run(1, 2, 2, 40, window=w, seed=4) for w in (6, 0))
            return page_file.Run(*(getattr(narrow, x) + getattr(wide, x) for x in ("weights", "v", "q", "k")),
                                 windows=[6, 0])
        return self.page("sliding", run)

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

    def test_pointing_at_later_tokens_where_they_can_be_seen(self):
        path, _, meta = self.page("bidirectional", layers=1, heads=4, kv=2, nq=12, mask="none")
        self.show(path, meta, v="head", a="0.0", q=3)
        self.browser.mouse(*self.browser.js("middle($$('.prose .token')[9])"))
        self.assertRegex(self.browser.js("$('.pair').innerText"), r"^3 .*→ 9 .*: 0\.\d{3}$")
        path, _, meta = self.sliding()
        self.show(path, meta, v="head", a="0.0", q=30)
        self.browser.mouse(*self.browser.js("middle($$('.prose .token')[28])"))
        self.assertRegex(self.browser.js("$('.pair').innerText"), r"^30 .*→ 28 ")
        self.browser.mouse(*self.browser.js("middle($$('.prose .token')[9])"))
        self.assertRegex(self.browser.js("$('.pair').innerText"), r"^9 .*→ …$")

    def test_bytes_turn_no_text(self):
        pieces = ["שלום".encode(), b" a", b"\xe2", b"\x80", b"\xae", b"b", b"\xef\xbb", b"\xbf",
                  "\u061c\u00ad\u2028\u2029".encode(), b"\xd9", b"\x85"]
        path, _, meta = self.page("turning", lambda: page_file.random_run(1, 2, 2, len(pieces), tokens=pieces),
                                  page={"ids": list(range(len(pieces)))})
        self.show(path, meta, v="head")
        text = self.browser.js("$('main').textContent")
        for sign in "\u202e\ufeff\u061c\u00ad\u2028\u2029":
            self.assertNotIn(sign, text)
        prose = self.browser.js("$('.prose').textContent")
        for sign in ("202E", "FEFF", "061C", "00AD", "2028", "2029"):
            self.assertIn(f"⟨U+{sign}⟩", prose)
        self.assertEqual(self.browser.js("$$('.bytes').map(n => n.querySelector('bdi[dir=ltr] .token').textContent)"),
                         ["⟨E2⟩", "⟨EF BB⟩", "⟨D9⟩"])

    def test_shortcuts_of_the_browser_are_left_to_it(self):
        path, _, meta = self.small()
        browser = self.show(path, meta, v="heads", a="0.0", b="1.1")
        browser.js("$('.cell[tabindex=\"0\"]').focus(); window.taken = []; "
                   "addEventListener('keydown', (e) => taken.push(e.defaultPrevented)); true")
        before = self.hash()
        for name in ("c", "ArrowRight"):
            for modifier in ("ctrlKey", "metaKey", "altKey"):
                browser.js("root().activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: '" + name + "', "
                           + modifier + ": true, bubbles: true, composed: true, cancelable: true})); true")
        self.assertEqual(browser.js("taken"), [False] * 6)
        self.assertEqual(self.hash(), before)

    def test_a_foreign_link_in_an_open_page(self):
        path, _, meta = self.small()
        browser = self.show(path, meta, v="head", a="2.1")
        browser.js("location.hash = 'v=query&a=1.0&f=another'; true")
        browser.settle()
        self.assertIn("another page", browser.js("$('.notice').innerText"))
        self.assertTrue(browser.js("shown($('.notice')) && shown($('.grid-scroll'))"))
        browser.js("location.hash = 'v=query&a=1.1&f=a-third'; true")  # the same view, and still foreign
        browser.settle()
        self.assertTrue(browser.js("shown($('.notice'))"))
        browser.mouse(*browser.js("middle($$('nav button')[1])"), click=True)
        self.assertFalse(browser.js("shown($('.notice'))"))

    def test_a_part_is_no_zoom_to_choose(self):
        path, _, meta = self.page("hover", layers=4, heads=4, kv=2, nq=60)
        zoom = "(() => {const s = $$('select').find(s => [...s.options].some(o => o.value === 'own'));" \
               "return [s.value, s.options[s.options.length - 1].disabled]})()"
        self.show(path, meta, v="head", a="0.0")
        self.assertEqual(self.browser.js(zoom), ["0", True])
        self.go(v="head", a="0.0", z="10,0,17")
        self.assertEqual(self.browser.js(zoom), ["own", False])

    def test_a_role_that_no_head_has(self):
        path, _, meta = self.small()
        absent = next(r for r in page_file.TARGETS if r not in meta["roles"])
        self.show(path, meta, v="heads", r="ranked", role=absent)
        self.assertEqual(self.browser.js("$$('.cell').length"), 12)

    def test_zoom_keeps_the_locked_link_in_view(self):
        path, _, meta = self.page("hover", layers=4, heads=4, kv=2, nq=60)
        browser = self.show(path, meta, v="head", a="0.0", q=50, k=3, z="40,0,16")
        self.assertTrue(browser.js("shown($('.outline.query')) && shown($('.outline.key'))"))
        x, y = browser.js("middle($('.map canvas'))")
        browser.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-120)
        browser.wait("decodeURIComponent(location.hash).match(/z=([0-9,]+)/)[1].split(',')[2] < 16")

    def test_colours_are_monotone_for_every_eye(self):
        sources = "".join((page_file.ROOT / "explorer" / f).read_text() for f in ("dom.js", "colour.js"))
        self.browser.open("data:text/html,")
        scales = self.browser.js("(() => {" + sources + "return ['light', 'dark'].map(t => themeScales(t).weights.css)})()")
        # Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
        eyes = {"usual": np.eye(3),
                "protan": [[.152286, 1.052583, -.204868], [.114503, .786281, .099216], [-.003882, -.048116, 1.051998]],
                "deutan": [[.367322, .860646, -.227968], [.280085, .672501, .047413], [-.011820, .042940, .968881]],
                "tritan": [[1.255528, -.076749, -.178779], [-.078411, .930809, .147602], [.004733, .691367, .303900]]}
        for css, sign in zip(scales, (-1, 1)):
            rgb = np.array([[int(x) for x in c[4:-1].split()] for c in css]) / 255
            linear = np.where(rgb <= .04045, rgb / 12.92, ((rgb + .055) / 1.055) ** 2.4)
            for eye, matrix in eyes.items():
                luminance = np.clip(linear @ np.array(matrix).T, 0, 1) @ [.2126, .7152, .0722]
                every = luminance[::5]  # neighbours may round to the same bytes
                self.assertTrue((sign * np.diff(every) > 0).all(), eye)


if __name__ == "__main__":
    unittest.main()
