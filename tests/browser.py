"""A headless Chromium, asked through its DevTools pipe: no driver and no port, and nothing of it is left behind."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def browser_command() -> str | None:
    """Path of a Chromium or Chrome on this machine."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab; its events are kept in the order they came."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def open(self, url: str, *, width: int = 1200, height: int = 900, mobile: bool = False, dark: bool = False) -> None:
        scale = 2 if mobile else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        before = len(self.events())
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired", before)

    def events(self) -> list[dict[str, Any]]:
        """What came for this tab: one that was looked at before may still tell of itself."""
        return [each for each in self._browser.events if each.get("sessionId") == self._session]

    def wait_for(self, method: str, before: int = 0) -> None:
        """Read on until an event of this tab has come, after its first `before` ones."""
        while not any(each["method"] == method for each in self.events()[before:]):
            self._browser.receive()

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def screenshot(self, file: Path) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        file.write_bytes(base64.b64decode(data))

    def pdf(self, file: Path) -> None:
        data = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        file.write_bytes(base64.b64decode(data))

    def requests(self) -> list[str]:
        """Addresses asked for, without what the page carries itself."""
        sent = [each["params"] for each in self.events() if each["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent if not each["request"]["url"].startswith("data:")]

    def complaints(self) -> list[str]:
        """What the console says: messages of scripts and of the browser itself, refusals of the CSP among them."""
        said = [each for each in self.events() if each["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled")]
        thrown = [each for each in self.events() if each["method"] == "Runtime.exceptionThrown"]
        return [json.dumps(each["params"]) for each in (*said, *thrown)]


class Browser:
    """Messages to and from one Chromium, each ended by a zero byte."""

    def __init__(self, reading: int, writing: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._reading, self._writing = reading, writing
        self._buffer, self._number = b"", 0

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        while True:
            found = self.receive()
            if found.get("id") == self._number:
                if "error" in found:
                    raise AssertionError(f"{method}: {found['error']}")
                return found["result"]

    def receive(self) -> dict[str, Any]:
        """Read the next message, and keep it if it tells of an event."""
        while b"\0" not in self._buffer:
            read = os.read(self._reading, 1 << 16)
            if not read:
                raise AssertionError("the browser ended")
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        if "method" in found:
            self.events.append(found)
        return found


def _high(descriptor: int) -> int:
    found = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return found


@contextmanager
def browser(command: str) -> Iterator[Browser]:
    """Start a Chromium with a profile of its own, and end it."""
    # Above 9, so that none of them is 3 or 4, where the browser looks.
    to_browser, writing = map(_high, os.pipe())
    reading, from_browser = map(_high, os.pipe())
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        # A shell gives the ends their numbers: Popen keeps those they have.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", command, *_OPTIONS, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            found = Browser(reading, writing)
            yield found
            found.call("Browser.close")
        finally:
            os.close(writing)
            os.close(reading)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
