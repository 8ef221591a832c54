#!/usr/bin/env python3
"""The head page in a real Chromium: sizes, themes, texts of any kind, and what readers and keyboards need."""
import unittest

import numpy as np

import page_file
from browser import axe_source
from page_case import VIEWS, PageCase


class AccessPageTest(PageCase):
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
