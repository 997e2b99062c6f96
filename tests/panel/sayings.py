"""What the page can say in English, and how it looks a sentence up in another language (base.js, `said`)."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

from k3stack.engines.pairs import group_rules, pair_rules
from k3stack.engines.rules import rules
from k3stack.errors import K3Error
from k3stack.hardware.table import gpus
from k3stack.panel.answer import answer
from k3stack.panel.checking import diagnosis
from k3stack.panel.dimensions import start
from k3stack.panel.figures import _series
from k3stack.panel.files import page
from k3stack.panel.machine import found as machine
from k3stack.panel.shard import _NOT_HERE
from k3stack.plan import rules as layout_rules
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.plan import make_plan
from k3stack.plan.reserves import Reserves
from k3stack.recipe.choice import Choice
from k3stack.recipe.link import from_query, to_query
from k3stack.recipe.render import Form
from k3stack.spec.published import kimi_k3
from k3stack.values import dump

_PLACE = re.compile(r"\{(\w+[*,;]?)\}")


class Sayings:
    """A language's sentences; the page's own way to look one up, a second time."""

    def __init__(self, table: dict[str, str]) -> None:
        self.whole = table
        forms = [(_PLACE.split(text), said) for text, said in table.items() if "{" in text]
        forms.sort(key=lambda form: -len("".join(form[0][::2])))
        self.forms = [(_pattern(parts), parts[1::2], said) for parts, said in forms]

    def said(self, text: str) -> str:
        """The sentence, which may come without its full stop; as it is where there is none."""
        if f"{text}." in self.whole and text not in self.whole:
            return self.whole[f"{text}."].removesuffix("。")
        return self.whole.get(text) or self._filled(text) or self._filled(f"{text}.").removesuffix("。") or text

    def listed(self, text: str, mark: str) -> str:
        return {",": "，", ";": "；"}[mark].join(map(self.said, text.split(f"{mark} ")))

    def _filled(self, text: str) -> str:
        for pattern, names, said in self.forms:
            match = pattern.fullmatch(text)
            if match is not None:
                values = dict(zip(names, map(self._placed, names, match.groups()), strict=True))
                return re.sub(_PLACE, partial(_value, values), said)
        return ""

    def _placed(self, name: str, text: str) -> str:
        return self.listed(text, name[-1]) if name[-1] in ",;" else self.said(text)


def _value(values: dict[str, str], place: re.Match[str]) -> str:
    return values[place[1]]


def _pattern(parts: list[str]) -> re.Pattern[str]:
    places = ["(\\S+?)" if name[-1].isalnum() else "(.+?)" for name in parts[1::2]]
    words = [re.escape(words) for words in parts[::2]]
    return re.compile("".join(word + place for word, place in zip(words, [*places, ""], strict=True)))


@lru_cache(maxsize=1)
def chinese() -> Sayings:
    return Sayings(json.loads(page("zh.sentences.json")))


# --- what is left in English


NAMES = frozenset(
    "token rank kimi vllm sglang cookbook docker compose model runner worker router static none false required megamoe "
    "mori aiter flashmla marlin humming triton hermes fastsafetensors amd hopper blackwell dep dspark dflash hicache "
    "shell guard mem util niah kernelore tp pp nnodes auto export mooncake".split()
)
"""Names of things, that are the same in Chinese."""

_CODE = re.compile(
    r"`[^`]*`|https?://\S+|'[^']*'|\{[^}]*\}|k3 (?:panel|doctor parsers)|docker run"  # quoted, an address, a command
    r"|(?<!\w)--?[A-Za-z][\w.-]*(?:[ =][\w.:/{}\"-]*\w)?"  # a flag and its value
    r"|[\w.@#+-]*[_/@#:=.\d][\w.@#+:=/-]*"  # a path, a release, a setting, anything with a digit
    r"|[a-z]+(?:-[a-z]+)+"  # a name with dashes
)


def left_over(text: str) -> list[str]:
    """English words in a text that should have none; names, code and units do not count."""
    words = re.findall(r"[A-Za-z][A-Za-z'-]*", _CODE.sub(" ", text))
    return [word for word in words if word.islower() and len(word) > 1 and word not in NAMES]


# --- what the page can show


def shown(choice: Choice) -> Iterator[tuple[str, str]]:
    """Every text of an answer that comes from rules or the planner, and how the page shows it."""
    found = dump(answer(choice, Form.SHELL))
    for row in found["rows"]:
        for option in row["options"]:
            if row["dimension"] == "layout":
                yield "said", option["label"]
            yield from _texts(option["refused"] or {}, "why", "fix")
            yield from (("said", move["why"]) for move in option["moves"])
    for memory in found["memory"]:
        yield from _texts(memory, "refused", "gpu_source")
        for item in memory["items"]:
            yield from _texts(item, "what", "formula")
        yield from (("said", text) for name in ("would_fit", "notes") for text in memory[name])
    yield from (("said", text) for name in ("unknown", "notes") for text in found[name])
    yield from (("said", form["refused"]) for form in found["forms"])
    reasons = [reason for several in (found["written"] or {"reasons": []})["reasons"] for reason in several]
    settings = [found["image"], *found["environment"], *found["patches"], *found["parsers"]]
    for reason in [*reasons, *(one["why"] for one in settings)]:
        yield from _texts(reason, "why", "source")


def _texts(held: dict[str, Any], *names: str) -> Iterator[tuple[str, str]]:
    for name in names:
        if held.get(name):
            yield ("cited" if name == "source" else "said"), held[name]


def always() -> Iterator[tuple[str, str]]:
    """What no state of a test may happen to show: every rule, layout rule, GPU, series, and the doctor's findings."""
    for engine in ("vllm", "sglang"):
        for rule in rules(engine):
            yield from (("said", text) for text in (rule.why, rule.fix, rule.note or "") if text)
            yield "cited", rule.source
        for pair in pair_rules(engine):
            yield from _texts(pair.model_dump(), "why", "fix", "source")
    for group in group_rules():
        yield from _texts(group.model_dump(), "why", "fix", "source")
    for rule_ in layout_rules._rules().values():
        why = re.sub(r"\{architecture\}", "gfx950", rule_.why)
        yield "said", f"{re.sub(r'{[a-z]+}', '16', why)} ({rule_.source}, {rule_.date})"
    yield from (("said", kind.source) for kind in gpus().values())
    for one in _series():
        yield from (("said", text) for text in (one.setting, one.notes) if text)
        yield "listed", one.setup
        yield from (("said", value) for run in one.runs for value in run.metrics.values() if isinstance(value, str))
        yield "cited", one.source
    yield from _texts(_NOT_HERE, "why", "fix")
    yield from doctors()
    yield from errors()
    yield from measured_here()
    yield from (("said", text) for text in machine().missing)


_VLLM = "vllm serve moonshotai/Kimi-K3"
_SGLANG = "sglang serve --model-path moonshotai/Kimi-K3"
COPIED = (
    "docker run -p 8000:8000 -e VLLM_NOTHING=1 -e HF_TOKEN=hf_abcdefghijkl vllm/vllm-openai:latest "
    "moonshotai/Kimi-K3 --nnodes 2",
    f"{_VLLM} stray --bogus 3 --max-model-len many --tensor-parallel-size=8 --tool-call-parser hermes",
    f"{_VLLM} --tensor-paralel-size 8 --no-enable-dbo=1 --gpu-memory-utilization x --max-num-seqs --seed 1 --seed 2",
    f"{_VLLM} --kv-cache-dtype fp9 --speculative-config '{{\"nothing\": 1' --enable-dbo --tool-call-parser kimi_k2",
    f'{_VLLM} --compilation-config \'{{"cudagraph_mode": "X", "cudagraf_mode": 1}}\' --max-num-batched-tokens 1',
    f"{_VLLM} '--max-num-seqs 3'",
    "vllm serve nvidia/Kimi-K3-NVFP4 --data-parallel-size 2 --tensor-parallel-size 8",
    f"{_SGLANG} --tp-size 8 --dcp-size 8 --enable-symm-mem --speculative-algorithm DSPARK --cuda 3",
    f"{_SGLANG} --tp-siz 8 --mem-frac 0.9 --disable-radix-cache --enable-hierarchical-cache",
    "python3 -m sglang.launch_server --model-path nvidia/Kimi-K3-NVFP4 --tp 8 --nnodes 2 --moe-runner-backend triton",
)
"""Commands with every kind of fault."""

_NIXL = "--kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role"
_SIDES = f"{_SGLANG} --disaggregation-mode"
SEVERAL = (
    f"{_VLLM} {_NIXL} kv_producer --port 8001 -tp 8 &\n"
    f"{_VLLM} {_NIXL} kv_consumer --port 8001 -tp 3 -dcp 3 --kv-cache-dtype fp8 --served-model-name k3-other",
    f"{_SIDES} prefill --pp-size 3 --page-size 64 --tp-size 8 --disaggregation-bootstrap-port 1\n"
    f"{_SIDES} decode --pp-size 2 --page-size 32 --tp-size 3 --nnodes 2 --node-rank 0 --dist-init-addr a:1\n"
    f"{_SIDES} decode --nnodes 3 --node-rank 1 --dist-init-addr a:2 --mem-fraction-static 0.9\n"
    "python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://a:1 --decode http://b:2 --nothing",
    f"{_SIDES} prefill\n{_VLLM} {_NIXL} kv_consumer --headless --data-parallel-start-rank 8\n"
    "sglang-router --prefill http://a:30000 3",
    f"{_VLLM} --nnodes 4 --node-rank 1 --master-addr a\n{_VLLM} --nnodes 4 --node-rank 1 --master-addr a",
    f"{_VLLM} --nnodes 4 --node-rank 1 --master-addr a\n{_VLLM} --nnodes 4 --node-rank 2 --master-addr a",
    f"VLLM_USE_V2_MODEL_RUNNER=1\n{_VLLM} \\ \n--config a.yaml",
    f"VLLM_USE_V2_MODEL_RUNNER=1\nNCCL_DEBUG=1\n{_VLLM} \\\n# eight\n--seed 1 \u2014port 3 --hf-overrides {{a:1}}",
    f"python3 -m dynamo.vllm --model moonshotai/Kimi-K3 {_NIXL} kv_both --dyn-nothing 3",
)
"""Several commands with every kind of fault that they have together, and what a shell makes of them."""


def doctors() -> Iterator[tuple[str, str]]:
    for text in (*COPIED, *SEVERAL):
        for kind in (None, gpus()["b300"], gpus()["h200"]):
            found = dump(diagnosis(text, kind))
            for one in (found, *found["roles"]):
                yield from (
                    ("said", said) for said in (one["checked_by"], *one["assumed"], one.get("name", "")) if said
                )
                for fault in one["faults"]:
                    yield from _texts(fault, "what", "why", "fix", "source")
                    if " " in fault["rule"]:
                        yield "said", fault["rule"]


def errors() -> Iterator[tuple[str, str]]:
    """What is said of links and pastes that make no sense."""
    good = to_query(start())
    changes = {
        "engine=vllm": "engine=other",
        "version=0.33.0": "version=9.9",
        "hardware=b300": "hardware=x",
        "goal=balanced": "goal=best",
        "layout=tp8": "layout=tp5",
        "dcp1": "dcp3",
        "tp8": "tp0",
        "context=196608": "context=-5",
        "utilization=0.9": "utilization=2",
        "scheme=mxfp4&": "",
        "features=": "evil=1&features=",
    }
    for old, new in changes.items():
        try:
            answer(from_query(good.replace(old, new)), Form.DOCKER)
        except K3Error as error:
            yield from (("said", text) for text in (error.what, error.hint or "") if text)
    for text in (
        "",
        "echo",
        "docker run",
        "docker run ubuntu:24",
        "docker run vllm/vllm-openai:v0.1.2",
        "vllm serve 'x",
    ):
        try:
            diagnosis(text, None)
        except K3Error as error:
            yield from (("said", text) for text in (error.what, error.hint or "") if text)


def measured_here() -> Iterator[tuple[str, str]]:
    """Plans with reserves of a log, and with notes."""
    known = Reserves(2_000_000_000, 3_000_000_000, 4_096, 2_000_000_000, "vllm of unknown version, TP8, start.log")
    for engine, gpu, tp, work in (
        ("vllm", "b300", 8, Workload(utilization=0.98)),
        ("vllm", "b300", 8, Workload(batched_tokens=4_096)),
        ("vllm", "h200", 16, Workload(speculative_tokens=8, replay_ssm=True)),
        ("sglang", "b300", 8, Workload(utilization=0.99)),
    ):
        plan = make_plan(kimi_k3(), "model", gpus()[gpu], Layout(tp=tp), work, engine, reserves=known)
        yield from (("said", text) for line in plan.ledger.lines for text in (line.what, line.formula))
        yield from (("said", text) for text in (*plan.notes, *plan.would_fit))
