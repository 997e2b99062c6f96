"""Images in the prompt."""

from __future__ import annotations

from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import Refused
from k3stack.verify.picture import COLOURS, data_address, png
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session

_PATH = "file:///etc/hostname"


@check(
    "images",
    Level.FULL,
    "Images",
    proves="Two images in one prompt are seen, in order; a larger image costs more tokens.",
    failure_means="Placeholders counted or expanded wrong, images dropped by a gateway, or --language-model-only.",
    limit_s=300,
)
async def images(session: Session) -> Verdict:
    """Two squares of different colours, then the other way round. The first image may take long: engines compile."""
    first, second = session.dice.sample(sorted(COLOURS), 2)
    question = "Which colour is the first image and which is the second? Answer with two words, first colour first."
    little, much = (56, 112) if session.untrained else (112, 448)
    tokens = 1 if session.untrained else 32
    try:
        answer = await session.ask(_content(question, (first, little), (second, little)), tokens)
    except Refused as error:
        if error.status < 500:
            return not_applicable(f"the endpoint takes no images: {error}", error.exchange)
        return failed(f"an image gives HTTP {error.status}", error.exchange)
    # The other way round, so that a cache that knows images by place or size answers wrong.
    large = await session.ask(_content(question, (second, much), (first, much)), tokens)
    again = await session.ask(_content(question, (second, little), (first, little)), tokens)
    text = await session.ask(question, tokens=1, max_tokens=1)
    figures = []
    if answer.usage and large.usage and text.usage:
        costs = [one.usage.prompt - text.usage.prompt for one in (answer, large) if one.usage]
        sizes = zip((little, much), costs, strict=True)
        figures = [Figure(f"two images of {side} x {side} pixels", cost, "tokens") for side, cost in sizes]
        if costs[0] <= 0:
            return failed("the images add nothing to the prompt", answer.exchange(), figures=figures)
        if costs[1] <= costs[0]:
            return failed("a larger image costs no more tokens", large.exchange(), figures=figures)
    if session.untrained:
        if not figures:
            return not_applicable("random weights do not see, and the endpoint gives no usage")
        return passed("images are expanded into the prompt; what random weights see means nothing", figures=figures)
    for one, colours in ((answer, (first, second)), (large, (second, first)), (again, (second, first))):
        if fault := _fault(one, *colours):
            return failed(fault, one.exchange(), figures=figures)
    return passed(f"it sees {first}, then {second}", answer.exchange(), figures=figures)


def _content(question: str, *squares: tuple[str, int]) -> list[dict[str, Any]]:
    pictures = [
        {"type": "image_url", "image_url": {"url": data_address(png(COLOURS[name], side))}} for name, side in squares
    ]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": question}]}]


def _fault(answer: Answer, first: str, second: str) -> str:
    said = answer.content.lower()
    places = {name: said.find(name) for name in (first, second)}
    if min(places.values()) < 0 or places[first] > places[second]:
        return f"the images are {first} and {second}, it says {answer.content[:60]!r}"
    return ""


@check(
    "images-bad",
    Level.FULL,
    "Broken images are refused",
    proves="A broken picture, a wrong kind of file and a local path get a 4xx, and the endpoint goes on.",
    failure_means="An engine or gateway that decodes without care: one bad image takes the server down, or files of "
    "the server can be read.",
)
async def images_bad(session: Session) -> Verdict:
    """Three bad addresses, then an ordinary request. A text-only endpoint refuses all, which proves nothing."""
    try:
        await session.ask(_content("What is this?", ("red", 112)), tokens=1, max_tokens=1)
    except Refused as error:
        return not_applicable(f"the endpoint takes no images: {error}", error.exchange)
    bad = {
        "a broken PNG": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA",
        "text that claims to be a PNG": "data:image/png;base64,bm8gcGljdHVyZQ==",
        "a path of the server": _PATH,
    }
    late = None
    for what, address in bad.items():
        content = [{"type": "image_url", "image_url": {"url": address}}, {"type": "text", "text": "What is this?"}]
        try:
            answer = await session.ask([{"role": "user", "content": content}], tokens=16)
        except Refused as error:
            if error.status >= 500 and address != _PATH:
                return failed(f"{what} gives HTTP {error.status} instead of a 4xx", error.exchange)
            late = error if error.status >= 500 else late
            continue
        return failed(f"{what} is taken as an image", answer.exchange())
    await session.ask("Reply with exactly this text: ok", tokens=8)
    if late is not None:
        what = f"a path of the server is refused, with HTTP {late.status} where a 4xx belongs, as vLLM 0.33.0 does"
        return warned(what, late.exchange)
    return passed("all three are refused, and the endpoint goes on")
