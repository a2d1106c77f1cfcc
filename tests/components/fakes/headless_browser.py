"""A headless Chromium for tests of pages, driven by the Chrome DevTools Protocol over a pipe.

The protocol: https://chromedevtools.github.io/devtools-protocol/. It needs no driver and no port.
"""

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
_SECONDS = 60.0  # for one answer
_KEYS = {  # code and text of the keys that tests press
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "Home": ("Home", 36, ""),
    "+": ("Equal", 187, "+"),
    "0": ("Digit0", 48, "0"),
}


def find_browser() -> str | None:
    """Return the path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """A running browser. Not thread-safe."""

    def __init__(self, path: str, profile: Path) -> None:
        reads, self._to_browser = os.pipe()
        self._from_browser, writes = os.pipe()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        # The browser reads from descriptor 3 and writes to 4; only bash redirects descriptors of two digits.
        command = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", path, *options, "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(reads, writes), stdout=quiet, stderr=quiet)
        os.close(reads)
        os.close(writes)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.tabs: dict[str, Tab] = {}

    def open(self, address: str, **settings: Any) -> "Tab":
        """Open a page in a new tab; settings as in `Tab.emulate`."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self.tabs[session] = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.emulate(**settings)
        tab.open(address)
        return tab

    def call(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Return the result of a command; events that arrive before it go to their tabs."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params or {}}
        os.write(
            self._to_browser, json.dumps({**message, **({"sessionId": session} if session else {})}).encode() + b"\0"
        )
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def receive(self) -> dict[str, Any]:
        """Wait for a message; give an event to its tab."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from_browser], [], [], _SECONDS)
            part = os.read(self._from_browser, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        tab = self.tabs.get(message.get("sessionId", ""))
        if "method" in message and tab is not None:
            tab.events.append(message)
        return message

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(_SECONDS)
        os.close(self._to_browser)
        os.close(self._from_browser)


class Tab:
    """An open page, with the events of the protocol since it was opened."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)

    def emulate(self, *, width: int = 1200, height: int = 900, is_dark: bool = False, has_scripts: bool = True) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not has_scripts)

    def open(self, address: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._browser.receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; wait for a promise."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until the expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.01)

    def press(self, key: str) -> None:
        code, number, text = _KEYS[key]
        values = {"key": key, "code": code, "windowsVirtualKeyCode": number, "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **values)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def problems(self) -> list[str]:
        """Return errors and warnings of the console, exceptions, and violations of the page's policy."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Return the addresses that were requested after the page itself; data URIs are none."""
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls[1:] if not url.startswith("data:")]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", {"targetId": self._target})
        del self._browser.tabs[self._session]
