"""What `k3 plan` prints: a plan, what switches are worth, other routes, a search, a log beside our arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k3stack.plan.compare import Comparison
from k3stack.plan.effects import Effect
from k3stack.plan.logs import Observed
from k3stack.plan.plan import Plan
from k3stack.plan.routes import Route
from k3stack.values import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from k3stack.plan.assess import Capacity
    from k3stack.plan.search import Search

__all__ = ["Answer", "Calibration", "show", "show_calibration", "show_effects", "show_routes", "show_search"]

SHOWN_LAYOUTS = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, and what each switch is worth."""

    plan: Plan
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A log, and our numbers beside its."""

    log: Observed
    comparisons: tuple[Comparison, ...]


def _table(*titles: str, right: tuple[str, ...] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    return table


def show(made: Plan, console: Console) -> None:
    """The plan as text."""
    from rich.markup import escape

    layout, gpu = made.layout, made.gpu
    engine = f"{_ENGINES.get(made.engine, made.engine)} {made.release}".strip()
    console.print(
        f"[bold]{escape(made.model)}[/] ({made.scheme}) on {layout.gpus} x {gpu.name}, {engine}, {layout.describe()}"
    )
    console.print(f"[{'green' if made.yes else 'red'} bold]{made.verdict}[/]: {escape(made.reason)}")
    _show_objections(made, console)
    for change in made.would_fit:
        console.print(f"would fit: {change}")
    for note in made.notes:
        console.print(f"note: {escape(note)}")
    stage = f" (stage {made.ledger.stage})" if layout.pp > 1 else ""
    table = _table(f"memory of one GPU{stage}", "bytes", "number is", "from", right=("bytes",))
    for line in made.ledger.lines:
        table.add_row(line.what, f"{line.size_bytes:,}", line.origin.value, escape(line.formula))
    table.add_row("sum", f"{made.ledger.total_bytes:,}", "", "", style="bold")
    share = f"{made.workload.utilization:.0%} of {format_bytes(gpu.memory_bytes)}"
    table.add_row("engine may use", f"{made.budget_bytes:,}", gpu.memory_origin.value, f"{share}; {gpu.source}")
    table.add_row("left", f"{made.left_bytes:,}", "computed", "", style="bold")
    console.print(table)
    if made.yes:
        _show_capacity(made, console)
    else:
        show_routes(made.routes, console)


def _show_objections(made: Plan, console: Console) -> None:
    """What the rules have against a layout that memory may allow."""
    from rich.markup import escape

    for one in made.objections:
        console.print(f"[yellow]k3 recipe refuses it[/]: {escape(str(one))}")


_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


def _show_capacity(made: Plan, console: Console) -> None:
    capacity, work = made.capacity, made.workload
    replica = " in each replica" if made.layout.dp > 1 else ""
    if made.engine == "vllm":
        console.print(f"cache: {capacity.blocks:,} blocks of {capacity.block_tokens:,} tokens{replica}")
        console.print(f"       vLLM will print: GPU KV cache size: {capacity.printed_tokens:,} tokens")
    else:
        console.print(f"cache: {capacity.blocks:,} state slots, {capacity.kv_tokens:,} tokens{replica}")
        console.print(f"       with --mamba-full-memory-ratio {capacity.state_ratio}")
        if capacity.balanced_ratio is not None:
            per_request = f"when requests hold {work.context:,} tokens on average"
            console.print(f"       both pools run out together at ratio {capacity.balanced_ratio} {per_request}")
    console.print(
        f"       {capacity.kv_tokens:,} tokens beside the KDA state of {work.concurrency} requests, or "
        f"{capacity.full_requests} requests of {work.context:,} tokens"
    )
    console.print(
        f"       longest single request: {capacity.longest_context:,} tokens; first limit: {capacity.limited_by}"
    )


def show_effects(found: tuple[Effect, ...], console: Console) -> None:
    """The before/after table."""
    from rich.markup import escape

    if not found:
        return
    titles = ("change", "tokens in the cache", "longest request", "full requests at once")
    table = _table(*titles, right=titles[1:])
    before = found[0].before
    table.add_row("as planned", *_numbers(before), style="bold")
    for effect in found:
        if effect.after is None:
            table.add_row(effect.switch, "refused", "", escape(effect.why_not))
        else:
            table.add_row(effect.switch, *_numbers(effect.after))
    console.print()
    console.print(table)
    for effect in found:
        if effect.objection and effect.after is not None:
            console.print(f"k3 recipe refuses {effect.switch}: {escape(effect.objection)}")


def _numbers(capacity: Capacity) -> tuple[str, str, str]:
    return f"{capacity.kv_tokens:,}", f"{capacity.longest_context:,}", f"{capacity.full_requests:,}"


def show_routes(ways: tuple[Route, ...], console: Console) -> None:
    """Other ways to K3, with their cost."""
    from rich.markup import escape

    if not ways:
        return
    console.print("\n[bold]Other ways to K3[/]")
    for way in ways:
        mark = "[green]possible here[/]" if way.possible else f"[red]not here[/]: {escape(way.why)}"
        console.print(f"[bold]{way.name}[/] {mark}")
        console.print(f"   {escape(way.command)}")
        console.print(f"   quality: {escape(way.quality)}")
        console.print(f"   speed:   {escape(way.speed)}")


def show_search(found: Search, console: Console) -> None:
    """Layouts that can be tried, best first, and why the others were rejected."""
    from rich.markup import escape

    if found.plans:
        best = found.plans[0]
        console.print(
            f"[green bold]{best.layout.describe()}[/] first of {len(found.plans)} layouts for {found.goal} on "
            f"{found.gpus} x {best.gpu.name}, {_ENGINES[found.engine]}: {found.because}"
        )
        _show_objections(best, console)
        titles = (
            "layout",
            "verdict",
            "left per GPU",
            "tokens in the cache",
            "longest request",
            "full requests at once",
            "refused by",
        )
        table = _table(*titles, right=titles[2:-1])
        for plan in found.plans[:SHOWN_LAYOUTS]:
            full = plan.capacity.full_requests * plan.layout.dp
            tokens = plan.capacity.kv_tokens * plan.layout.dp
            longest = f"{plan.capacity.longest_context:,}"
            row = (plan.verdict.value, format_bytes(plan.left_bytes), f"{tokens:,}", longest, f"{full:,}", _rules(plan))
            table.add_row(plan.layout.describe(), *row)
        console.print(table)
        if len(found.plans) > SHOWN_LAYOUTS:
            console.print(f"and {len(found.plans) - SHOWN_LAYOUTS} more (all with --json)")
        _show_rules(found.plans[:SHOWN_LAYOUTS], console)
    else:
        console.print(f"[red bold]nothing fits[/]: {len(found.rejected)} layouts tried")
    if found.rejected:
        console.print()
        table = _table("rejected", "why")
        for one in found.rejected:
            table.add_row(one.layout.describe(), escape(one.why))
        console.print(table)


def _rules(plan: Plan) -> str:
    return ", ".join(one.rule for one in plan.objections)


def _show_rules(plans: tuple[Plan, ...], console: Console) -> None:
    """The reasons of the rules by which `k3 recipe` refuses these layouts."""
    from rich.markup import escape

    for rule, reason in {one.rule: str(one) for plan in plans for one in plan.objections}.items():
        console.print(f"{rule}: {escape(reason)}")


def show_calibration(found: Calibration, console: Console) -> None:
    """Predicted beside reported, and what the log does not hold."""
    from rich.markup import escape

    log = found.log
    said = ", ".join(f"{setting.name} {escape(setting.value)}" for setting in log.settings)
    console.print(f"[bold]{log.engine} {log.version or '(version not printed)'}[/]: {said}")
    if found.comparisons:
        table = _table("quantity", "predicted", "reported", "unit", "", "how", right=("predicted", "reported"))
        for one in found.comparisons:
            mark = {True: "agrees", False: "differs", None: ""}[one.agrees]
            predicted, reported = _number(one.predicted), _number(one.reported)
            table.add_row(one.quantity, predicted, reported, one.unit, mark, f"{one.origin.value}: {escape(one.why)}")
        console.print(table)
    compared = {one.quantity for one in found.comparisons if one.reported is not None}
    others = [figure for figure in log.figures if figure.name not in compared]
    if others:
        console.print("\n[bold]also reported[/]")
        for figure in others:
            span = _number(figure.least)
            if figure.greatest != figure.least:
                span += f" to {_number(figure.greatest)}"
            times = f", {len(figure.values)} times" if len(figure.values) > 1 else ""
            console.print(f"{figure.name}: {span} {figure.unit}{times}")
    console.print(f"\nabsent from this log: {', '.join(log.absent) or 'nothing'}")
    for error in log.errors:
        console.print(f"[red]error in the log[/]: {escape(error)}")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:,.2f}"
