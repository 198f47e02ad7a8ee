"""Drives a headless Chromium over the pipes of its DevTools, without packages."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """The program, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One tab. What the page logs, and what its policy blocks, is in `problems`."""

    def __init__(self, program, dark=False):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder}",
                 "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update",
                 "--disable-extensions", "--disable-sync", "--no-proxy-server",
                 "--hide-scrollbars", "--force-color-profile=srgb"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium's own rule

        def pipes():  # it reads from 3 and writes to 4
            first, second = os.dup(to_read), os.dup(from_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(
            [program, *flags, "about:blank"], preexec_fn=pipes, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.problems = []
        self._answers, self._next, self._ended = {}, 0, False
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self._session = None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"]
                      if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"],
                                  flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def _read(self):
        rest = b""
        while piece := os.read(self._from, 1 << 16):
            *messages, rest = (rest + piece).split(b"\0")
            for message in map(json.loads, messages):
                with self._changed:
                    if "id" in message:
                        self._answers[message["id"]] = message
                        self._changed.notify_all()
                    elif message["method"] == "Runtime.exceptionThrown":
                        details = message["params"]["exceptionDetails"]
                        self.problems.append(
                            details.get("exception", {}).get("description", details["text"]))
                    elif message["method"] == "Log.entryAdded":
                        entry = message["params"]["entry"]
                        if entry["level"] == "error":
                            self.problems.append(f"{entry['text']} {entry.get('url', '')}")
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def call(self, method, **params):
        with self._changed:
            self._next += 1
            number = self._next
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        with self._changed:
            if not self._changed.wait_for(
                    lambda: number in self._answers or self._ended, timeout=120):
                raise TimeoutError(f"no answer to {method}")
            if number not in self._answers:
                raise RuntimeError("Chromium has ended")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=False)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def js(self, expression):
        """The value of an expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, condition, seconds=60):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.js(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.02)

    def key(self, name, text=""):
        """A key of the keyboard, as Tab, Enter or ArrowRight."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37,
                "ArrowRight": 39}[name]
        fields = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def pointer(self, selector, click=False):
        """Moves the mouse to the middle of an element, and clicks there."""
        x, y = self.js(f"""(() => {{
          const element = document.querySelector({json.dumps(selector)});
          element.scrollIntoView({{block: 'center'}});
          const at = element.getBoundingClientRect();
          return [at.left + at.width / 2, at.top + at.height / 2];
        }})()""")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                          clickCount=1)

    def screenshot(self):
        """The visible part, as PNG in base64."""
        return self.call("Page.captureScreenshot", format="png")["data"]

    def close(self):
        try:
            self._session = None
            self.call("Browser.close")
        except (RuntimeError, OSError):
            pass
        self.process.wait(timeout=60)
        for end in (self._to, self._from):
            os.close(end)
        shutil.rmtree(self.folder, ignore_errors=True)
