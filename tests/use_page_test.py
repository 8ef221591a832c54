#!/usr/bin/env python3
"""The head page in a real Chromium: locks, keys, links, zoom, and files that are cut or of another version."""
import json
import unittest

from page_case import HELPERS, PageCase


class UsePageTest(PageCase):
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

    def test_zoom_keeps_the_locked_link_in_view(self):
        path, _, meta = self.page("hover", layers=4, heads=4, kv=2, nq=60)
        browser = self.show(path, meta, v="head", a="0.0", q=50, k=3, z="40,0,16")
        self.assertTrue(browser.js("shown($('.outline.query')) && shown($('.outline.key'))"))
        x, y = browser.js("middle($('.map canvas'))")
        browser.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-120)
        browser.wait("decodeURIComponent(location.hash).match(/z=([0-9,]+)/)[1].split(',')[2] < 16")


if __name__ == "__main__":
    unittest.main()
