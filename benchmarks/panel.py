"""How quickly the panel answers a click, when it can be used, and how heavy it is.

    python benchmarks/panel.py [--site DIR]

Drives the page in Chromium (apt-get install chromium): 200 clicks on random values of random rows and 100 steps of the
sliders, each timed in the page from the event to the frame that shows the answer. With --site it does the same to an
exported site, opened from its files with the network off. A click's time includes drawing; nothing is left out.

For comparison, from their sources: SGLang's deploy page for Kimi-K3 consists of kimi-k3.jsx (89,181 characters) and
_deployment.jsx (75,375 characters), before the documentation framework that it needs (sgl-project/sglang docs, read
2026-09-16 or later). It computes no memory, so a time beside ours would compare different things.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.panel.browser import CHROMIUM, WHY_NOT, Tab, chromium, serving

CLICKS, STEPS = 200, 100

TIMED_CLICK = """id => new Promise(resolve => {
  const node = document.getElementById(id);
  const began = performance.now();
  const seen = new MutationObserver(() => requestAnimationFrame(() => requestAnimationFrame(() => {
    if (document.documentElement.hasAttribute("aria-busy")) return;
    seen.disconnect();
    resolve(performance.now() - began);
  })));
  seen.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  seen.observe(document.documentElement, { attributes: true });
  node.click();
})"""

TIMED_STEP = """([id, value]) => new Promise(resolve => {
  const node = document.getElementById(id);
  const began = performance.now();
  const shown = document.getElementById("verdict");
  const seen = new MutationObserver(() => requestAnimationFrame(() => {
    seen.disconnect();
    resolve(performance.now() - began);
  }));
  seen.observe(shown, { subtree: true, childList: true, characterData: true });
  node.value = value;
  node.dispatchEvent(new Event("input"));
})"""


def clicks(tab: Tab) -> list[float]:
    """Milliseconds of each click that leads somewhere."""
    dice = random.Random(1)
    times: list[float] = []
    while len(times) < CLICKS:
        possible = tab.page.evaluate(
            "[...document.querySelectorAll('#rows .chip[aria-disabled=false][aria-checked=false]')].map(one => one.id)"
        )
        times.append(float(tab.page.evaluate(TIMED_CLICK, dice.choice(possible))))
        tab.settle()
    return times


def steps(tab: Tab) -> list[float]:
    """Milliseconds of each step of a slider."""
    dice = random.Random(2)
    times: list[float] = []
    for number in range(STEPS):
        name = ("context", "concurrency")[number % 2]
        most = int(tab.page.locator(f"#s-{name}").get_attribute("max") or 0)
        now = int(tab.page.locator(f"#s-{name}").input_value())
        value = dice.choice([stop for stop in range(most + 1) if stop != now])
        times.append(float(tab.page.evaluate(TIMED_STEP, [f"s-{name}", str(value)])))
        tab.settle()
    return times


def shown(name: str, times: list[float]) -> None:
    """One line of the report."""
    middle, most = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    print(f"  {name:<24} {middle:6.1f} ms median   {most:6.1f} ms p95   ({len(times)} measured)")


def ready(tab: Tab) -> float:
    """Milliseconds from the request of the page to a page that can be used."""
    script = "performance.getEntriesByName('k3-ready')[0].startTime"
    return float(tab.page.evaluate(script))


def measure(browser: Any, name: str, address: str, **settings: Any) -> None:
    """One page: served or exported."""
    print(f"{name}:")
    tab = Tab(browser, address, **settings)
    print(f"  usable after             {ready(tab):6.1f} ms")
    shown("a click", clicks(tab))
    shown("a step of a slider", steps(tab))
    tab.close()


def weigh(browser: Any, address: str) -> None:
    """What the served page loads, its first answer included."""
    context = browser.new_context()
    page = context.new_page()
    bodies: list[bytes] = []
    page.on("response", lambda response: bodies.append(response.body()))
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    page.wait_for_timeout(500)
    whole, packed = sum(map(len, bodies)), sum(len(gzip.compress(body)) for body in bodies)
    sizes = f"{whole / 1000:.0f} kB ({packed / 1000:.0f} kB gzipped)"
    print(f"page weight: {sizes} in {len(bodies)} files, with the first answer")
    context.close()


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--site", type=Path, help="an exported site to measure too")
    chosen = options.parse_args()
    if not CHROMIUM:
        raise SystemExit(WHY_NOT)
    print(f"{len(os.sched_getaffinity(0))} cores")
    with serving() as address, chromium() as browser:
        weigh(browser, address)
        measure(browser, "served", address)
        if chosen.site:
            measure(browser, "exported", f"{(chosen.site.resolve() / 'index.html').as_uri()}", offline=True)
    print("peer: SGLang's page: 165 kB of its own source before its framework; no memory, no reasons per flag")


if __name__ == "__main__":
    main()
