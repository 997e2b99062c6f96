"""Take docs/pictures/panel*.png from the panel as it is.

    python docs/draw_panel.py

Needs Chromium and a font with Chinese (apt-get install chromium fonts-noto-cjk). Run it when the page looks different;
look at the pictures before you commit them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.panel.browser import CHROMIUM, WHY_NOT, Tab, chromium, serving

PICTURES = Path(__file__).with_name("pictures")
COLOURS = 255
"""A page has few; a picture of few is a third of the size."""
DESK = {"width": 1440, "height": 1000}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
    "locale": "zh-CN",
    "color_scheme": "dark",
}


def usual(browser: Any, address: str) -> None:
    """The beginning, with the reason of one flag."""
    tab = Tab(browser, address, viewport={**DESK, "height": 1130})
    tab.page.locator("#command .part", has_text="--load-format").evaluate("node => node.focus({ preventScroll: true })")
    _take(tab, "panel.png")


def moved(browser: Any, address: str) -> None:
    """Another GPU: what moved along, and why a value is not possible."""
    tab = Tab(browser, address, viewport=DESK)
    tab.take("hardware", "h200")
    tab.take("scheme", "nvfp4-experts")
    tab.page.locator(".would .tool").first.wait_for()
    _take(tab, "panel-moved.png")


def phone(browser: Any, address: str) -> None:
    """The results on a phone, in Chinese, dark, with the ledger open."""
    tab = Tab(browser, address, **PHONE)
    tab.page.locator("details.more summary").click()
    tab.page.evaluate("scrollTo(0, document.getElementById('results').getBoundingClientRect().top + scrollY - 12)")
    _take(tab, "panel-phone.png")


def _take(tab: Tab, name: str) -> None:
    tab.page.wait_for_timeout(300)
    tab.page.screenshot(path=PICTURES / name)
    tab.close()
    with Image.open(PICTURES / name) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(PICTURES / name, optimize=True)


def main() -> None:
    """Take all of them."""
    if not CHROMIUM:
        raise SystemExit(WHY_NOT)
    with serving() as address, chromium() as browser:
        for picture in (usual, moved, phone):
            picture(browser, address)


if __name__ == "__main__":
    main()
