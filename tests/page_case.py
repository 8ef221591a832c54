"""What tests of the head page in a real Chromium share: pages of random numbers, a browser that shows them, and ways to
look into one."""
import json
import tempfile
import unittest
from pathlib import Path

import page_file
from browser import CHROMIUM, Browser

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
class PageCase(unittest.TestCase):
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

    def sliding(self):
        """Layer 0 with a window of 6 tokens, layer 1 without."""
        def run():
            narrow, wide = (page_file.random_run(1, 2, 2, 40, window=w, seed=4) for w in (6, 0))
            return page_file.Run(*(getattr(narrow, x) + getattr(wide, x) for x in ("weights", "v", "q", "k")),
                                 windows=[6, 0])
        return self.page("sliding", run)

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
