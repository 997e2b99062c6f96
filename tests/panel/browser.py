"""The page in a real browser: Debian's Chromium, driven by Playwright."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

CHROMIUM = os.environ.get("K3_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
WHY_NOT = "no Chromium: apt-get install chromium fonts-noto-cjk, or name one in K3_CHROMIUM"


@contextmanager
def serving() -> Iterator[str]:
    """`k3 panel` on a free port; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with started(port) as address:
        yield address


@contextmanager
def started(port: int | str) -> Iterator[str]:
    """`k3 panel` on this port; its address."""
    command = [str(Path(sys.executable).with_name("k3")), "panel", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}/"
        try:
            _wait(address, process)
            yield address
        finally:
            process.terminate()
            process.wait(20)


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(300):
        assert process.poll() is None, "the panel ended"
        try:
            if httpx.get(f"{address}api/answer", timeout=20).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError("the panel does not answer")


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """One open page; what its console said is kept.

    Attributes:
        excused: part of what the console may say, because the test brings it about.
    """

    def __init__(self, browser: Any, address: str, hash_: str = "", **settings: Any) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **settings}
        )
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.excused = ""
        self.page.on("console", lambda message: self.said.append(message.text) if message.type != "log" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(address + hash_)
        self.ready()

    def ready(self) -> None:
        self.page.wait_for_selector("html[data-ready]")

    def settle(self) -> None:
        self.page.wait_for_selector("html:not([aria-busy])")

    def until(self, condition: str) -> None:
        """Wait for a condition. Playwright's own waiting evaluates text in the page, which its policy forbids."""
        for _ in range(200):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(condition)

    def take(self, dimension: str, value: str) -> None:
        """Click a value; one that is not possible too."""
        self.page.locator(f'[id="o-{dimension}-{value}"]').click(force=True)
        self.settle()

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def command(self) -> str:
        return str(self.page.evaluate("K3.command.text()"))

    def link(self) -> str:
        return str(self.page.evaluate("location.hash"))

    def close(self) -> None:
        """Close it; nothing was said in the console, and no text is what a script makes of a thing that has none."""
        body = str(self.page.evaluate("document.body ? document.body.innerText : ''"))
        self.context.close()
        said = [one for one in self.said if not self.excused or self.excused not in one]
        assert not said, said
        assert "[object " not in body and "undefined" not in body
