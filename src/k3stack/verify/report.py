"""The values of this room: what is checked, what was seen, what it means.

Everything here is a frozen dataclass that survives `k3stack.values.dump` and `load`, so a report can be kept as JSON
and drawn again later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from k3stack.errors import UsageError
from k3stack.ports import is_address
from k3stack.values import Origin

__all__ = [
    "CheckReport",
    "CheckResult",
    "Exchange",
    "Figure",
    "Level",
    "Plot",
    "Series",
    "Status",
    "Target",
    "Weights",
]


class Level(StrEnum):
    """How much is checked: each level holds the one before."""

    QUICK = "quick"
    FULL = "full"
    SOAK = "soak"

    def includes(self, other: Level) -> bool:
        """Whether a check of level `other` belongs to this one."""
        order = list(Level)
        return order.index(other) <= order.index(self)


class Weights(StrEnum):
    """Whether the model was trained. One with random weights has mechanics that can be checked, but no memory."""

    TRAINED = "trained"
    RANDOM = "random"


class Status(StrEnum):
    """What a check found.

    PASS and FAIL are verdicts. WARN is right but worth knowing. NOT_APPLICABLE could not be judged here, for a reason
    that is given; it is never counted as a pass. ERROR: the check itself could not be carried out (time-out, lost
    connection), which on a live endpoint is bad news as well.
    """

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    NOT_APPLICABLE = "not applicable"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoint to check.

    Attributes:
        url: its base, with or without /v1.
        model: the name to ask for; None takes the only or first one of /v1/models.
        key_variable: name of the environment variable that holds the API key; the key itself is never a value here.
        weights: what the model is; None asks /v1/models and takes trained where it does not say.
        longest: prompt tokens of the longest recall prompt; shortened to what the endpoint takes.
        connect_s: seconds for a connection.
        silence_s: seconds without a byte after which a request is given up.
        check_s: seconds for one check; None leaves each check its own limit.
        soak_s: how long the soak runs.
        seed: of the words and numbers in the prompts; None draws one, so that no earlier run's cache answers. The
            report names it.
    """

    url: str
    model: str | None = None
    key_variable: str | None = None
    weights: Weights | None = None
    longest: int = 32_768
    connect_s: float = 5.0
    silence_s: float = 120.0
    check_s: float | None = None
    soak_s: float = 600.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work, by name."""
        if not is_address(self.url):
            raise UsageError(f"{self.url!r} is no address", where="url", hint="Give one like http://127.0.0.1:8000")
        for name in ("longest", "connect_s", "silence_s", "soak_s"):
            if getattr(self, name) <= 0:
                raise UsageError("must be above 0", where=name)
        if self.check_s is not None and self.check_s <= 0:
            raise UsageError("must be above 0", where="check_s")

    @property
    def base(self) -> str:
        """The address without a trailing slash and without /v1."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a result, with where it comes from."""

    name: str
    value: float
    unit: str
    origin: Origin = Origin.MEASURED


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line, or one group of bars."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of a result, as data.

    Attributes:
        kind: "line" and "dots" over x; "bars" (x counts the labels); "grid", where each series is a row of cells whose
            values lie between 0 and 1.
        labels: names of the x positions of bars and grids.
    """

    title: str
    kind: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came back, shortened: enough to see why, and to try again."""

    sent: str
    received: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        id: its name on the command line.
        title: what it looks at.
        proves: what a pass shows.
        failure_means: what usually lies behind a failure.
        summary: what was found this time, one sentence.
        evidence: what was sent and what came back; on a failure the exchange that shows it comes first.
    """

    id: str
    title: str
    proves: str
    failure_means: str
    status: Status
    summary: str
    evidence: tuple[Exchange, ...] = ()
    figures: tuple[Figure, ...] = ()
    plots: tuple[Plot, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found about one endpoint.

    Attributes:
        target: what was asked for.
        model: the name that answered.
        weights: what the model is taken for, and so how it was judged.
        server: what the endpoint says it is, in a few words.
        level: how much was checked.
        only: the ids that were asked for, where not the whole level.
        started: UTC, ISO 8601.
        version: k3stack's.
        seed: the one the prompts were made from.
        learned: what was found out before the checks and shaped them: accepted parameters, limits.
    """

    target: Target
    model: str
    weights: Weights
    server: str
    level: Level
    only: tuple[str, ...]
    started: str
    seconds: float
    version: str
    seed: int
    learned: tuple[str, ...]
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Nothing failed, every check could be carried out, and at least one could be judged."""
        counts = self.counts
        return not counts[Status.FAIL] and not counts[Status.ERROR] and counts[Status.PASS] + counts[Status.WARN] > 0

    @property
    def counts(self) -> Counter[Status]:
        """How many results there are of each status."""
        return Counter(result.status for result in self.results)

    def result(self, check_id: str) -> CheckResult:
        """The result of one check.

        Raises:
            KeyError: it did not run.
        """
        for result in self.results:
            if result.id == check_id:
                return result
        raise KeyError(check_id)
