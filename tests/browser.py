"""Chromium without a driver: the DevTools protocol over a pipe."""
import base64
import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome")
                 if (path := shutil.which(name))), None)
AXE = ("axe-core-python==0.1.0", "axe_core_python/axe.min.js")
AXE_SHA256 = "697ea6c7edff0fe289b7bbecf1ff7b9015249bc834b409a348cd060df80aeba0"


def axe_source():
    """axe-core out of a pinned package, kept between runs; None where there is no network."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "polyhead" / "axe.min.js"
    if not cache.exists():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                       "--disable-pip-version-check", "--dest", folder, AXE[0]]
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                return None
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                text = wheel.read(AXE[1])
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_bytes(text)
    text = cache.read_bytes()
    assert hashlib.sha256(text).hexdigest() == AXE_SHA256, "axe.min.js is not the pinned one"
    return text.decode()


class Browser:
    """One tab. `log` holds what pages said on the console, threw, or asked the network for."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="polyhead-chromium-")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def pipes():  # the protocol speaks on descriptors 3 (in) and 4 (out)
            spare = [os.dup2(fd, at) for fd, at in ((to_browser, 103), (from_browser, 104))]
            for fd, at in zip(spare, (3, 4)):
                os.dup2(fd, at)

        self.process = subprocess.Popen(  # pylint: disable=consider-using-with,subprocess-popen-preexec-fn
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--force-color-profile=srgb", "--enable-precise-memory-info",
             f"--user-data-dir={self.folder}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.count, self.buffer, self.session, self.log = 0, b"", None, []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility", "DOM", "Performance"):
            self.send(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        shutil.rmtree(self.folder, ignore_errors=True)

    def send(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data):]
        deadline = time.monotonic() + 60
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            if not select.select([self.read_end], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self.read_end, 1 << 20)
            if not data:
                raise EOFError("Chromium ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.log.append("threw " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.log.append("console " + " ".join(str(a.get("value")) for a in values["args"]))
        elif method == "Log.entryAdded":
            self.log.append("log " + values["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = values["request"]["url"]
            if not url.startswith(("file:", "about:", "data:text/html,")):
                self.log.append("asked for " + url)

    def size(self, width, height=900, ratio=1):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio,
                  mobile=width < 500)

    def open(self, url):
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.settle()

    def wait(self, condition, seconds=60):  # as long as an answer may take on a busy machine
        deadline = time.monotonic() + seconds
        while not self.js(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def settle(self):
        """After what the page does next has been drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def js(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def mouse(self, x, y, click=False, modifiers=0):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, modifiers=modifiers)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1,
                          buttons=1 if kind == "mousePressed" else 0, modifiers=modifiers)
        self.settle()

    def touch(self, x, y):
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def key(self, name, modifiers=0):
        text = name if len(name) == 1 else {"Enter": "\r"}.get(name, "")
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
        code = codes.get(name, ord(name.upper()[0]))
        self.send("Input.dispatchKeyEvent", type="keyDown", key=name, text=text, windowsVirtualKeyCode=code,
                  modifiers=modifiers)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code, modifiers=modifiers)
        self.settle()

    def screenshot(self, path):
        data = self.send("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
