"""Small SVG charts of our own: no library, no network, colours from the page's style sheet, light or dark.

Every mark carries a <title>, which browsers show as a tooltip and readers speak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from k3stack.verify.report import Plot, Series

__all__ = ["chart", "ticks"]

_WIDTH, _HEIGHT = 460.0, 250.0
_APART = 30.0  # pixels that two numbers on an axis need
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 16.0, 14.0, 42.0


def chart(plot: Plot) -> str:
    """The plot as an <svg> element with its legend below."""
    if not any(series.points for series in plot.series):
        return '<p class="empty">nothing was measured</p>'
    draw = {"bars": _bars, "grid": _grid}.get(plot.kind, _lines)
    return draw(plot)


def ticks(top: float, count: int = 4) -> list[float]:
    """Round numbers from 0 up to at least `top`, about `count` steps.

    >>> ticks(7), ticks(0.031), ticks(0)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 0.01, 0.02, 0.03, 0.04], [0.0, 1.0])
    """
    if not math.isfinite(top) or top <= 0:
        return [0.0, 1.0]
    raw = top / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw * 0.999)
    steps = math.ceil(top / step * 0.999)
    return [round(number * step, 12) for number in range(steps + 1)]


class _Frame:
    """The area of a chart with a y axis from 0, and where values lie in it."""

    def __init__(self, plot: Plot, top: float) -> None:
        self.plot = plot
        self.marks = ticks(top)
        self.top = self.marks[-1]

    def y(self, value: float) -> float:
        """Pixels from the top for a value."""
        share = min(max(value / self.top, 0.0), 1.0) if math.isfinite(value) else 0.0
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    def svg(self, marks: list[str]) -> str:
        """The frame around some marks: grid lines, axis texts."""
        title = escape(self.plot.title)
        parts = [f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{title}">']
        for value in self.marks:
            y = self.y(value)
            parts.append(f'<line class="rule" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(
                f'<text class="tick" x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>'
            )
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        below = f'x="{middle:g}" y="{_HEIGHT - 4:g}" text-anchor="middle"'
        parts.append(f'<text class="axis" {below}>{escape(self.plot.x_label)}</text>')
        aside = f'x="12" y="{_HEIGHT / 2:g}" transform="rotate(-90 12 {_HEIGHT / 2:g})"'
        parts.append(f'<text class="axis" {aside}>{escape(self.plot.y_label)}</text>')
        return "".join([*parts, *marks, "</svg>", _legend(self.plot.series)])


def _lines(plot: Plot) -> str:
    points = [point for series in plot.series for point in series.points]
    frame = _Frame(plot, max((y for _, y in points if math.isfinite(y)), default=1.0))
    place = _Place(sorted({x for x, _ in points}))
    marks = [
        f'<text class="tick" x="{place(x):.1f}" y="{_HEIGHT - _BOTTOM + 18:g}" text-anchor="middle">{_short(x)}</text>'
        for x in _x_marks(sorted({x for x, _ in points}), place)
    ]
    for number, series in enumerate(plot.series):
        marks += _line(frame, series, number, place)
    return frame.svg(marks)


def _line(frame: _Frame, series: Series, number: int, place: _Place) -> list[str]:
    colour = f"c{number % 5}"
    spots = [(place(x), frame.y(y), x, y) for x, y in series.points if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in spots)
    marks = [f'<polyline class="line {colour}" points="{path}"/>'] if len(spots) > 1 else []
    for x, y, at, value in spots:
        title = f"{escape(series.name)}: {_short(value)} {escape(frame.plot.y_label)} at {_short(at)}"
        marks.append(f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"><title>{title}</title></circle>')
    return marks


class _Place:
    """Where an x value lies: evenly by its logarithm when few values span a factor of 8, else by its size."""

    def __init__(self, values: Sequence[float]) -> None:
        self.log = 1 < len(values) <= 8 and values[0] > 0 and values[-1] / values[0] >= 8
        scaled = [self._scale(value) for value in values]
        self.low, self.high = scaled[0], scaled[-1]

    def _scale(self, value: float) -> float:
        return math.log2(value) if self.log else value

    def __call__(self, value: float) -> float:
        """Pixels from the left."""
        share = 0.5 if self.high == self.low else (self._scale(value) - self.low) / (self.high - self.low)
        inset = 14.0
        return _LEFT + inset + share * (_WIDTH - _LEFT - _RIGHT - 2 * inset)


def _x_marks(values: Sequence[float], place: _Place) -> list[float]:
    """The values that get a number below them: the measured ones where they are few and apart, else round ones."""
    if len(values) > 12:
        return [mark for mark in ticks(values[-1], 6) if values[0] <= mark <= values[-1]]
    kept = [values[0]]
    for value in values[1:-1]:
        if place(value) - place(kept[-1]) >= _APART and place(values[-1]) - place(value) >= _APART:
            kept.append(value)
    return kept if len(values) == 1 else [*kept, values[-1]]


def _bars(plot: Plot) -> str:
    values = [y for series in plot.series for _, y in series.points if math.isfinite(y)]
    frame = _Frame(plot, max(values, default=1.0))
    slots = max(len(series.points) for series in plot.series)
    width = (_WIDTH - _LEFT - _RIGHT) / slots
    bar = min(width * 0.8 / len(plot.series), 34.0)
    marks = []
    for slot in range(slots):
        middle = _LEFT + (slot + 0.5) * width
        label = plot.labels[slot] if slot < len(plot.labels) else str(slot + 1)
        where = f'x="{middle:.1f}" y="{_HEIGHT - _BOTTOM + 18:g}" text-anchor="middle"'
        marks.append(f'<text class="tick" {where}>{escape(label)}</text>')
        for number, series in enumerate(plot.series):
            if slot >= len(series.points):
                continue
            value = series.points[slot][1]
            x = middle + (number - len(plot.series) / 2) * bar
            y = frame.y(value)
            title = f"{escape(series.name)}, {escape(label)}: {_short(value)} {escape(plot.y_label)}"
            marks.append(
                f'<rect class="bar c{number % 5}" x="{x + 1:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" '
                f'height="{max(_HEIGHT - _BOTTOM - y, 1):.1f}" rx="2"><title>{title}</title></rect>'
            )
    return frame.svg(marks)


def _grid(plot: Plot) -> str:
    """Rows of cells, full at 1 and empty at 0; each says its value in words too, for those who see no colours."""
    columns = max(len(series.points) for series in plot.series)
    left, top, cell = 76.0, 10.0, min((_WIDTH - 92.0) / columns, 110.0)
    slanted = any(len(label) * 6.5 > cell for label in plot.labels)
    height = top + 30.0 * len(plot.series) + (92.0 if slanted else 40.0)
    parts = [f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{escape(plot.title)}">']
    for row, series in enumerate(plot.series):
        y = top + 30.0 * row
        parts.append(
            f'<text class="tick" x="{left - 8:g}" y="{y + 18:g}" text-anchor="end">{escape(series.name)}</text>'
        )
        for column, (_, value) in enumerate(series.points):
            label = plot.labels[column] if column < len(plot.labels) else str(column)
            good = value >= 1
            title = f"{escape(series.name)}, {escape(label)}: {'yes' if good else 'no'}"
            x, sign = left + column * cell, "&#10003;" if good else "&#10007;"
            parts.append(
                f'<g class="cell {"good" if good else "bad"}"><title>{title}</title>'
                f'<rect x="{x:.1f}" y="{y:g}" width="{cell - 3:.1f}" height="27" rx="3"/>'
                f'<text x="{x + cell / 2 - 1.5:.1f}" y="{y + 18:g}" text-anchor="middle">{sign}</text></g>'
            )
    below = top + 30.0 * len(plot.series) + 14
    for column, label in enumerate(plot.labels):
        x = left + column * cell + cell / 2
        turn = f' transform="rotate(-40 {x:.1f} {below:g})" text-anchor="end"' if slanted else ' text-anchor="middle"'
        parts.append(f'<text class="tick" x="{x:.1f}" y="{below:g}"{turn}>{escape(label)}</text>')
    parts.append(
        f'<text class="axis" x="{left:g}" y="{height - 4:g}">{escape(plot.y_label)} by {escape(plot.x_label)}</text>'
    )
    return "".join([*parts, "</svg>"])


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    keys = [f'<span class="key c{number % 5}">{escape(one.name)}</span>' for number, one in enumerate(series)]
    return f'<p class="legend">{"".join(keys)}</p>'


def _short(value: float) -> str:
    """A number for an axis: at most three digits that matter."""
    if not math.isfinite(value):
        return "none"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
