"""The doctor of a whole text: every engine and router in it by itself, and what is wrong with them together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from k3stack.engines.reading import read
from k3stack.engines.releases import latest, release
from k3stack.hardware.table import Gpu
from k3stack.recipe.choice import Parsers
from k3stack.recipe.copied import Copied, take_all_apart
from k3stack.recipe.doctor import (
    Diagnosis,
    Finding,
    Weight,
    diagnosis_of,
    parser_faults,
    shell_faults,
    text_faults,
)
from k3stack.recipe.meaning import number_of, role_of
from k3stack.recipe.together import Part, together

__all__ = ["Examination", "Examined", "examine"]

_OTHER_ROUTER = "other-router"


@dataclass(frozen=True, slots=True)
class Examined:
    """One command of a text.

    Attributes:
        name: its role, and which node, by what the command says: server, prefill, decode node 1, router.
        place: the service, pod, function or branch that it stands in; empty where it stands alone.
        line: where it begins, from 1; 0 where that is not known.
    """

    name: str
    place: str
    line: int
    diagnosis: Diagnosis

    @property
    def stands_in(self) -> str:
        """The place, where it says more than the name."""
        return "" if self.place == self.name else self.place


@dataclass(frozen=True, slots=True)
class Examination:
    """What is known about all commands of a text.

    Attributes:
        together: what is wrong with them together, or with the text.
    """

    roles: tuple[Examined, ...]
    together: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        """Whether nothing stops a command or makes it wrong, alone or together."""
        return all(one.diagnosis.good for one in self.roles) and all(
            finding.weight is Weight.ADVICE for finding in self.together
        )

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was taken for granted for every engine."""
        engines = [one.diagnosis for one in self.roles if not one.diagnosis.engine.endswith("-router")]
        return tuple(text for text in engines[0].assumed if all(text in one.assumed for one in engines))

    def assumed_by(self, one: Examined) -> tuple[str, ...]:
        """What was taken for granted for this command and not for every one."""
        by_all = self.assumed
        return tuple(text for text in one.diagnosis.assumed if text not in by_all)

    @property
    def only(self) -> Diagnosis | None:
        """The diagnosis of a text that holds one command, with what is to be said of the text."""
        if len(self.roles) != 1:
            return None
        one = self.roles[0].diagnosis
        return replace(one, findings=tuple(dict.fromkeys((*one.findings, *self.together))))


def examine(
    text: str, gpu: Gpu | None = None, version: str | None = None, parsers: Parsers = Parsers.KIMI_K3
) -> Examination:
    """Examine every command of a text; the arguments are as for `doctor.diagnose`.

    Raises:
        InputError: no engine is started here.
        NotKnownError: there is no snapshot of a release.
    """
    found = take_all_apart(text)
    parts = [_part(one, gpu, version, parsers) for one in found if one.engine != _OTHER_ROUTER]
    other = any(one.engine == _OTHER_ROUTER for one in found)
    common = [*together(parts, other), *text_faults(text)]
    roles = tuple(Examined(one.name, one.copied.place, one.copied.line, one.diagnosis) for one in parts)
    return Examination(roles, tuple(dict.fromkeys(common)))


def _part(copied: Copied, gpu: Gpu | None, version: str | None, parsers: Parsers) -> Part:
    if copied.is_router:
        return Part(copied, _router(copied), "router", "router")
    found = diagnosis_of(copied, gpu, version, parsers)
    role = role_of(found.settings, copied.words, copied.place)
    return Part(copied, found, role, _name(role, found))


def _name(role: str, found: Diagnosis) -> str:
    values = found.settings
    rank, start = str(values.get("node-rank", "")), str(values.get("data-parallel-start-rank", ""))
    if number_of(values, "nnodes") > 1 and rank.isdecimal():
        return f"{role} node {rank}"
    if start.isdecimal() and int(start) > 0:
        return f"{role} from replica {start}"
    return f"{role} worker" if values.get("headless") else role


def _router(copied: Copied) -> Diagnosis:
    """What the router's own parser says; which release it is, a command seldom tells."""
    taken = release(copied.engine, latest(copied.engine))
    understood = read(taken, copied.words)
    assumed = f"{copied.engine} {taken.version}, the newest release known, since the command does not say which"
    return Diagnosis(
        engine=copied.engine,
        version=taken.version,
        model="",
        findings=tuple(dict.fromkeys((*shell_faults(copied), *parser_faults(understood, taken)))),
        assumed=(assumed,),
        checked_by=f"snapshot of {taken.engine} {taken.version}",
        settings=understood.values(),
        environment=dict(copied.environment),
    )
