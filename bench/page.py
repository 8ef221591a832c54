#!/usr/bin/env python3
"""Times and memory of the head page in Chromium, against the bounds below.

  bench/page.py [FILE.html]     without a file: a page of random causal weights, 30 layers x 9 heads, 512 tokens
"""
import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
import page_file  # pylint: disable=wrong-import-position
from browser import Browser  # pylint: disable=wrong-import-position

DRAWN = """new Promise(done => { const look = () => document.getElementById('page')?.shadowRoot?.querySelector('.cell')
  ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 2); look(); })"""
HOVER = """(async () => { const root = document.getElementById('page').shadowRoot, times = [];
  const targets = [...root.querySelectorAll('%s')], step = Math.max(1, Math.floor(targets.length / 60));
  for (let n = 0; n < targets.length; n += step) {
    await new Promise(requestAnimationFrame);
    const start = performance.now();
    targets[n].dispatchEvent(new PointerEvent('pointerover', {bubbles: true, composed: true}));
    targets[n].getBoundingClientRect();
    times.push(performance.now() - start);
  }
  return times; })()"""


def report(name, value, bound, unit="ms"):
    print(f"{name:44}{value:10.1f} {unit:4}  bound {bound:g}  {'' if value <= bound else 'OVER'}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(folder) / "page.html"
        if len(sys.argv) < 2:
            path.write_text(page_file.page(page_file.random_run(30, 9, 3, 512, dim=16), steps=False))
        size = path.stat().st_size / 1e6
        with open(path, encoding="utf-8") as file:
            meta = json.loads(file.read(40_000_000).split('id="meta">')[1].split("</script>")[0])
        print(f"{size:.1f} MB, {meta['layers']} x {meta['heads']} heads, {meta['nq']} tokens")
        browser = Browser()
        browser.size(1400, 1000)
        view = lambda v, **more: f"file://{path.resolve()}#" + "&".join(
            f"{k}={x}" for k, x in {"v": v, "f": meta["file"], **more}.items())
        drawn = []
        for _ in range(3):
            browser.send("Page.navigate", url="about:blank")
            browser.wait("location.href === 'about:blank'")
            browser.send("Page.navigate", url=view("heads"))
            browser.wait("location.href !== 'about:blank'")
            drawn.append(browser.js(DRAWN))
        report("grid drawn after opening", statistics.median(drawn), 400)
        browser.wait("document.readyState === 'complete'")
        times = browser.js(HOVER % ".cell")
        report("hover over heads, first time, median", statistics.median(times), 16)
        times = browser.js(HOVER % ".cell")
        report("hover over heads, median", statistics.median(times), 8)
        report("hover over heads, worst", max(times), 16)
        browser.open(view("head", a=f"{meta['layers'] // 2}.0"))
        times = browser.js(HOVER % ".token")
        report("hover over tokens, median", statistics.median(times), 8)
        report("hover over tokens, worst", max(times), 16)
        opened = browser.js("""(async () => { const times = [];
          for (let l = 0; l < %d; l++) { await new Promise(requestAnimationFrame); const start = performance.now();
            const p = new URLSearchParams(location.hash.slice(1)); p.set('a', `${l}.1`); location.hash = p.toString();
            await new Promise(done => addEventListener('hashchange', done, {once: true}));
            document.body.getBoundingClientRect(); times.push(performance.now() - start); }
          return times; })()""" % meta["layers"])
        report("open a head, its layer not decoded, median", statistics.median(opened), 100)
        report("open a head, worst", max(opened), 100)
        browser.send("HeapProfiler.collectGarbage")
        heap = {m["name"]: m["value"] for m in browser.send("Performance.getMetrics")["metrics"]}
        bytes_ = browser.js("performance.memory.usedJSHeapSize")
        report("memory, all layers decoded", max(heap["JSHeapUsedSize"], bytes_) / 1e6, 3 * size, "MB")
        browser.close()


if __name__ == "__main__":
    main()
