"""What an engine really accepts, asked of its own argument parser. Runs in the engine's Python, standard library only.

    python probe.py snapshot vllm            every flag and environment variable of the release, as JSON
    python probe.py parse vllm < commands    a JSON list of word lists; answers with one error or null for each

No GPU is needed: vLLM is told that its platform is the CPU before anything else of it is imported.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import importlib
import importlib.metadata
import importlib.util
import io
import json
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENGINES = {"vllm": "vllm", "sglang": "sglang", "vllm-router": "vllm_router", "sglang-router": "sglang_router"}
"""Distribution name of each engine and the package that it installs."""

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{3,}")
_JSON_HELP = re.compile(r"JSON (string|format|dict)|in JSON|JSON-")


def parser_of(engine: str) -> argparse.ArgumentParser:
    """The engine's own parser of the command that serves a model."""
    make: dict[str, Any] = {
        "vllm": _vllm_parser,
        "sglang": _sglang_parser,
        "vllm-router": lambda: _router_parser("vllm_router"),
        "sglang-router": lambda: _router_parser("sglang_router"),
    }
    made: argparse.ArgumentParser = make[engine]()
    return made


def _vllm_parser() -> argparse.ArgumentParser:
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()  # what is detected otherwise is nothing at all
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    for place in ("common", "launchers", "openai"):
        name = f"vllm.entrypoints.{place}.cli_args"
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name):
                parser = FlexibleArgumentParser(prog="vllm serve")
                made: argparse.ArgumentParser = importlib.import_module(name).make_arg_parser(parser)
                return made
    raise SystemExit("this vLLM keeps its parser in a place that the probe does not know")


def _sglang_parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser


def _router_parser(package: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=package.replace("_", "-"))
    importlib.import_module(f"{package}.router_args").RouterArgs.add_cli_args(parser)
    return parser


def snapshot(engine: str) -> dict[str, Any]:
    """Everything about the installed release that a recipe must know."""
    sys.argv = [engine, "--help"]  # vLLM attaches its help texts, with the deprecations, only then
    parser = parser_of(engine)
    hidden: set[argparse.Action] = getattr(parser, "_deprecated", set())
    spellings: dict[int, list[str]] = {}
    for name, action in parser._option_string_actions.items():  # vLLM takes some that its help does not show
        spellings.setdefault(id(action), list(action.option_strings)).append(name)
    actions = {id(action): action for action in parser._option_string_actions.values()}
    flags = dict(_flag(action, spellings[one], action in hidden) for one, action in actions.items())
    flags.pop("help", None)
    return {
        "engine": engine,
        "version": importlib.metadata.version(engine),
        "abbreviations": parser.allow_abbrev,
        "flags": dict(sorted(flags.items())),
        "variables": sorted(_variables(_folder(ENGINES[engine]))),
    }


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed here")
    return Path(next(iter(spec.submodule_search_locations)))


def _flag(action: argparse.Action, spellings: list[str], deprecated: bool) -> tuple[str, dict[str, Any]]:
    names = list(dict.fromkeys(spellings))
    off = getattr(action, "negative_option_strings", ())
    negations = [name for name in names if name in off or (name.startswith("--no-") and f"--{name[5:]}" in names)]
    longs = [name for name in names if name.startswith("--") and name not in negations and "_" not in name]
    canonical = _canonical(action.dest, longs or names)
    about: dict[str, Any] = {"kind": _kind(action)}
    others = [name for name in names if name != canonical and name not in negations and "_" not in name]
    if others:
        about["aliases"] = others
    if negations:
        about["negations"] = negations
    if action.choices is not None:
        about["choices"] = sorted(str(choice) for choice in action.choices if choice is not None)
    elif isinstance(action.metavar, list):  # vLLM's names for values that are known, where others may be given too
        about["known"] = [str(value) for value in action.metavar]
    if isinstance(action, argparse._AppendAction):
        about["repeats"] = True
    if isinstance(action.nargs, int | str) and action.nargs != 0:
        about["count"] = action.nargs
    if isinstance(action.default, bool | int | float | str) and len(str(action.default)) < 60:
        about["default"] = action.default
    fields = _fields(action)
    if fields:
        about["fields"] = fields
    text = _deprecation(action, deprecated)
    if text:
        about["deprecated"] = text
    return canonical.lstrip("-"), about


def _canonical(dest: str, longs: list[str]) -> str:
    """The name that equals the field, otherwise the first: aliases then have one home."""
    field = "--" + dest.replace("_", "-")
    return field if field in longs else longs[0]


def _kind(action: argparse.Action) -> str:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return "flag"
    if isinstance(action.type, type) and action.type in (int, float, str):
        text = action.type is str and _JSON_HELP.search(action.help or "")
        return "json" if text or action.default == "{}" else action.type.__name__
    if action.type is None:
        return "str"
    for word, kind in (('{"a":1}', "json"), ("{}", "json"), ("1k", "size"), ("1", "int"), ("1.5", "float")):
        try:
            value = action.type(word)  # type: ignore[operator]
        except (argparse.ArgumentTypeError, ValueError, TypeError):
            continue
        if kind == "json":
            if not isinstance(value, str):
                return "json"
        elif isinstance(value, str):
            return "str"
        else:
            return kind
    return "json" if _config_class(action.type) else "str"


def _config_class(function: Any, depth: int = 0) -> Any:
    """The dataclass that a converter of vLLM validates against, found in its defaults or closure."""
    if depth > 3 or not callable(function):
        return None
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    for value in [*(getattr(function, "__defaults__", None) or ()), *held]:
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            return value
        found = _config_class(value, depth + 1) if callable(value) and not isinstance(value, type) else None
        if found:
            return found
    return None


def _fields(action: argparse.Action) -> dict[str, list[str]]:
    """The keys that a JSON value may have, each with its choices where there are any."""
    found = _config_class(action.type)
    if found is None and action.dest == "speculative_config" and "vllm" in sys.modules:
        found = importlib.import_module("vllm.config").SpeculativeConfig
    if found is None:
        return {}
    hints = typing.get_type_hints(found, include_extras=False)
    return {field.name: _choices(hints.get(field.name)) for field in dataclasses.fields(found)}


def _choices(hint: Any) -> list[str]:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return sorted(hint.__members__)
    if typing.get_origin(hint) is typing.Literal:
        return sorted(str(value) for value in typing.get_args(hint))
    found = [_choices(part) for part in typing.get_args(hint) if part is not type(None)]
    return found[0] if len(found) == 1 else []


def _deprecation(action: argparse.Action, deprecated: bool) -> str:
    if getattr(action, "error_message", None):
        return f"removed: {action.error_message}"  # type: ignore[attr-defined]
    if getattr(action, "new_flag", None):
        return f"use {action.new_flag}"  # type: ignore[attr-defined]
    text = " ".join((action.help or "").split())
    sentence = next((part for part in re.split(r"(?<=\.)\s", text) if re.search("deprecat", part, re.I)), "")
    if deprecated or type(action).__name__.startswith("Deprecated"):
        return sentence[:160] or "deprecated"
    return sentence[:160] if re.match(r"\W*(this \w+ is )?deprecated", sentence, re.I) else ""


def _variables(folder: Path) -> Iterator[str]:
    """Environment variables that the package's source reads, by name. Only read, never run."""
    seen: set[str] = set()
    for path in folder.rglob("*.py"):
        text = path.read_text(errors="replace")
        if "env" not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            seen.update(_named_by(node))
    yield from seen


def _named_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _reads(function):
            yield from _if_variable(name)
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            yield from _if_variable(name)
        case ast.Compare(left=ast.Constant(value=str(name)), comparators=[ast.Attribute(attr="environ")]):
            yield from _if_variable(name)
        case ast.AnnAssign(target=ast.Name(id="environment_variables"), value=ast.Dict(keys=keys)):
            for key in keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield from _if_variable(key.value)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=kind))) if kind.startswith("Env"):
            yield from _if_variable(name)


def _reads(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Attribute(attr="environ")):
            return True
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return "env" in name.lower()
    return False


def _if_variable(name: str) -> Iterator[str]:
    if _VARIABLE.fullmatch(name):
        yield name


def parse(engine: str, commands: list[list[str]]) -> dict[str, Any]:
    """The version, and what its parser says to each command: null, or its error."""
    parser = parser_of(engine)
    return {"version": importlib.metadata.version(engine), "errors": [_parse(parser, words) for words in commands]}


def _parse(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except SystemExit as error:
        if error.code:
            return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(arguments: list[str]) -> int:
    """Answer one question on stdout; whatever the engine logs goes to stderr."""
    wanted, engine = arguments
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        answer: Any = snapshot(engine) if wanted == "snapshot" else parse(engine, json.load(sys.stdin))
    json.dump(answer, out, separators=(",", ":"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
