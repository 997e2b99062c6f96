"""How much of each prompt's front has been seen before, and what changed where it has not.

For each API key the last conversations are remembered: hashes of their fronts and a little text, never whole
prompts, within a fixed amount of memory. A new prompt is compared with the one that it shares most with.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from k3stack.errors import InputError
from k3stack.guard.metrics import Metrics
from k3stack.guard.rendered import FRONT_BYTES, Rendered, common_bytes, render
from k3stack.guard.request import ChatRequest

__all__ = ["Cause", "PrefixReporter", "PrefixWatch", "Repeat"]

_THREAD_BYTES = 64 * 1024

_AROUND_BYTES = 40
_TIME = re.compile(
    rb"\d{4}-\d\d-\d\d|\d\d?:\d\d(:\d\d)?|\b1[6-9]\d{8}(\d{3})?\b|(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
)
_ID = re.compile(rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-|\b[0-9a-fA-F]{16,}\b")


class Cause(StrEnum):
    """Why a prompt left the front it shares with an earlier one."""

    FIRST = "first"
    CONTINUES = "continues"
    NEW_CONVERSATION = "new_conversation"
    TOOLS_REORDERED = "tools_reordered"
    TOOLS_CHANGED = "tools_changed"
    EFFORT_CHANGED = "effort_changed"
    TIME_IN_SYSTEM = "time_in_system_prompt"
    ID_IN_SYSTEM = "id_in_system_prompt"
    SYSTEM_CHANGED = "system_prompt_changed"
    REASONING_DROPPED = "reasoning_dropped"
    HISTORY_CHANGED = "history_changed"

    @property
    def costs(self) -> bool:
        """Whether a client could have kept the front."""
        return self not in (Cause.FIRST, Cause.CONTINUES, Cause.NEW_CONVERSATION)


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one prompt shares with the prompts before it.

    Args:
        key: six characters that stand for the API key while this process runs.
        total_bytes: the prompt's length, rendered, without its tail.
        repeated_bytes: how much of its front was in the best earlier prompt.
        known_bytes: that prompt's length.
        cause: why they part.
        where: the message in which they part, in words.
        detail: what changed: the text on both sides, or tool names. For people; it quotes the prompt.
    """

    key: str
    total_bytes: int
    repeated_bytes: int
    known_bytes: int
    cause: Cause
    where: str = ""
    detail: str = ""

    @property
    def ratio(self) -> float:
        """The share of the prompt that repeats."""
        return self.repeated_bytes / self.total_bytes if self.total_bytes else 1.0

    @property
    def line(self) -> str:
        """One line for people."""
        text = f"key {self.key}: {self.repeated_bytes:,} of {self.total_bytes:,} bytes repeat ({self.ratio:.0%})"
        if self.where:
            text += f"; parts in {self.where}: {self.cause.replace('_', ' ')}"
        else:
            text += f"; {self.cause.replace('_', ' ')}"
        return f"{text}: {self.detail}" if self.detail else text


class PrefixWatch:
    """Remembers fronts by API key.

    Args:
        max_bytes: memory for all of them together.
        per_key: conversations remembered for each key.
    """

    def __init__(self, max_bytes: int = 64 * 2**20, per_key: int = 64) -> None:
        self._max_bytes = max_bytes
        self._per_key = per_key
        self._known: OrderedDict[str, OrderedDict[int, Rendered]] = OrderedDict()
        self._size_bytes = 0
        self._next = 0
        # Keys are never kept: what stands for one changes with every start and cannot be turned back.
        self._salt = secrets.token_bytes(16)

    @property
    def size_bytes(self) -> int:
        """About how much memory the fronts take now."""
        return self._size_bytes

    def see(self, api_key: str, prompt: Rendered) -> Repeat:
        """Compare a prompt with the earlier ones of its key, and remember it."""
        name = hashlib.blake2b(api_key.encode(), key=self._salt, digest_size=8).hexdigest()[:6]
        known = self._known.setdefault(name, OrderedDict())
        self._known.move_to_end(name)
        best, shared, number = None, 0, -1
        for each, other in known.items():
            common = common_bytes(prompt, other)
            if best is None or common > shared or (common == shared and other.total_bytes <= best.total_bytes):
                best, shared, number = other, common, each
        repeat = _explain(name, prompt, best, shared)
        if best is not None and repeat.cause is Cause.CONTINUES:
            self._forget(known, number)  # the longer prompt says all that the shorter one did
        self._remember(known, prompt)
        return repeat

    def _remember(self, known: OrderedDict[int, Rendered], prompt: Rendered) -> None:
        known[self._next] = prompt
        self._next += 1
        self._size_bytes += prompt.size_bytes
        if len(known) > self._per_key:
            self._forget(known, next(iter(known)))
        while self._size_bytes > self._max_bytes and self._known:
            name, oldest = next(iter(self._known.items()))
            if oldest:
                self._forget(oldest, next(iter(oldest)))
            if not oldest:
                del self._known[name]

    def _forget(self, known: OrderedDict[int, Rendered], number: int) -> None:
        self._size_bytes -= known.pop(number).size_bytes


def _explain(key: str, prompt: Rendered, known: Rendered | None, shared: int) -> Repeat:
    if known is None:
        return Repeat(key, prompt.total_bytes, 0, 0, Cause.FIRST)
    if shared >= min(known.total_bytes, prompt.total_bytes):
        return Repeat(key, prompt.total_bytes, shared, known.total_bytes, Cause.CONTINUES)
    number = min(prompt.part_at(shared), known.part_at(shared))
    cause, detail = _cause(prompt, known, number, shared)
    return Repeat(key, prompt.total_bytes, shared, known.total_bytes, cause, _where(prompt, number), detail)


def _cause(prompt: Rendered, known: Rendered, number: int, shared: int) -> tuple[Cause, str]:
    """Why two prompts part in part `number`."""
    part, other = prompt.parts[number], known.parts[number]
    if prompt.tools != known.tools and "tool-declare" in (part.kind, other.kind):
        return _tool_change(prompt, known)
    before, now = _excerpts(known, shared), _excerpts(prompt, shared)
    detail = f"{now!r} was {before!r}" if shared < FRONT_BYTES else ""
    if "thinking-effort" in (part.kind, other.kind):
        return Cause.EFFORT_CHANGED, detail
    if part.role == "system" or other.role == "system":
        for pattern, cause in ((_ID, Cause.ID_IN_SYSTEM), (_TIME, Cause.TIME_IN_SYSTEM)):
            if _differ_by(pattern, prompt, known, shared):
                return cause, detail
        return Cause.SYSTEM_CHANGED, detail
    earlier = [each.role for each in prompt.parts[:number]]
    if "user" not in earlier and "assistant" not in earlier:
        return Cause.NEW_CONVERSATION, ""
    turn = earlier.count("assistant")
    if part.role == other.role == "assistant" and _had(known.reasoned, turn) and not _had(prompt.reasoned, turn):
        return Cause.REASONING_DROPPED, "send reasoning_content back with each assistant message"
    return Cause.HISTORY_CHANGED, detail


def _had(reasoned: tuple[bool, ...], turn: int) -> bool:
    return turn < len(reasoned) and reasoned[turn]


def _tool_change(prompt: Rendered, known: Rendered) -> tuple[Cause, str]:
    now, before = dict(prompt.tools), dict(known.tools)
    if sorted(prompt.tools) == sorted(known.tools):
        moved = next(name for (name, _), (other, _) in zip(prompt.tools, known.tools, strict=True) if name != other)
        return Cause.TOOLS_REORDERED, f"from {moved} on"
    changes = [f"+{name}" for name in now if name not in before] + [f"-{name}" for name in before if name not in now]
    changes += [f"~{name}" for name in now if name in before and now[name] != before[name]]
    return Cause.TOOLS_CHANGED, " ".join(changes[:8])


def _excerpts(prompt: Rendered, shared: int) -> str:
    return prompt.front[max(0, shared - 8) : shared + _AROUND_BYTES].decode("utf-8", "replace")


def _differ_by(pattern: re.Pattern[bytes], prompt: Rendered, known: Rendered, shared: int) -> bool:
    """Whether the place where both differ lies in something the pattern matches, in both."""
    start = max(0, shared - _AROUND_BYTES)

    def covers(front: bytes) -> bool:
        text = front[start : shared + _AROUND_BYTES]
        return any(found.start() <= shared - start < found.end() for found in pattern.finditer(text))

    return covers(prompt.front) and covers(known.front)


def _where(prompt: Rendered, number: int) -> str:
    part = prompt.parts[number]
    leading = next((place for place, each in enumerate(prompt.parts) if not each.kind), len(prompt.parts))
    if number < leading:
        return "the tools" if part.kind == "tool-declare" else "the thinking effort"
    return f"messages[{number - leading}] ({part.role})"


class PrefixReporter:
    """Renders and compares beside the requests it looks at: none waits for it.

    Args:
        metrics: to count in.
        explain: print a line for each request on stdout.
    """

    def __init__(self, metrics: Metrics, explain: bool) -> None:
        self._watch = PrefixWatch()
        self._metrics = metrics
        self._explain = explain
        self._tasks: set[asyncio.Task[None]] = set()

    def look_at(self, request: ChatRequest, api_key: str) -> None:
        """Begin to look at a request."""
        task = asyncio.get_running_loop().create_task(self._look(request, api_key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, request: ChatRequest, api_key: str) -> None:
        try:
            large = len(request.raw) > _THREAD_BYTES
            prompt = await asyncio.to_thread(render, request) if large else render(request)
        except InputError:
            return  # no prompt of K3's: the upstream will say so
        repeat = self._watch.see(api_key, prompt)
        if repeat.cause is not Cause.FIRST:
            self._metrics.observe(self._metrics.prefix_repeats, repeat.ratio)
        if repeat.cause.costs:
            self._metrics.count(self._metrics.divergences, repeat.cause)
        if self._explain:
            print(repeat.line, flush=True)
