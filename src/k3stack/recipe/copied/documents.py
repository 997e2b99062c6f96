"""Engines in YAML: services of a compose file, containers of a pod, scripts of a task, wherever they stand.

Every scalar is text, as it is written; nothing is constructed. Aliases are followed once each.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from k3stack.errors import InputError
from k3stack.recipe.copied.programs import engine_of_image, in_container, in_shell, in_words
from k3stack.recipe.copied.values import Copied, Docker

__all__ = ["in_documents", "looks_like_yaml"]

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_KEY = re.compile(r"(?m)^[ \t]*(?:- )?['\"]?[A-Za-z_][\w./-]*['\"]?[ \t]*:(?:[ \t]|$)|^\s*[\[{]\s*\"")
_STARTS = re.compile(r"\bserve\b|launch_server|vllm\.entrypoints|dynamo\.(vllm|sglang|frontend)|router|proxy")
_MERGE = "<<"
_INTERPOLATED = re.compile(r"\$(?:\$|\{([A-Za-z_]\w*)(?:(:?[-?+])([^{}]*(?:\{[^}]*\}[^{}]*)*))?\}|([A-Za-z_]\w*))")


def looks_like_yaml(text: str) -> bool:
    """Whether it is worth reading as YAML: a line that is a key, or a list of words in brackets."""
    return bool(_KEY.search(text))


def in_documents(text: str) -> list[Copied]:
    """Every engine in the documents of a YAML text; empty where it is no YAML or holds none."""
    try:
        documents = list(yaml.load_all(text, Loader=_LOADER))
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
    walk = _Walk()
    found: list[Copied] = []
    try:
        for document in documents:
            found += walk.node(document, (), {})
    except RecursionError:
        return []
    settings = _settings(documents)
    return [_with_settings(one, settings) for one in found]


def _settings(documents: list[Any]) -> dict[str, dict[str, Any]]:
    """The files of config maps that hold settings of an engine, by their names."""
    found: dict[str, dict[str, Any]] = {}
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != "ConfigMap":
            continue
        data = document.get("data")
        for name, text in data.items() if isinstance(data, dict) else ():
            try:
                held = yaml.load(text, Loader=_LOADER) if isinstance(text, str) else None
            except (yaml.YAMLError, RecursionError, ValueError):
                continue
            if isinstance(held, dict):
                found[name] = held
    return found


def _with_settings(copied: Copied, settings: Mapping[str, dict[str, Any]]) -> Copied:
    """With the settings of the file that `--config` names, where it is in the text; flags of the command win."""
    words = list(copied.words)
    at = words.index("--config") if "--config" in words[:-1] else -1
    held = settings.get(words[at + 1].rpartition("/")[2]) if at >= 0 else None
    if held is None:
        return copied
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    more: list[str] = []
    for name, value in held.items():
        if f"--{name}" not in given and value != "false":
            values = value if isinstance(value, list) else [value]
            more += [f"--{name}", *(one for one in values if isinstance(one, str) and one != "true")]
    return replace(copied, words=(*words[:at], *words[at + 2 :], *more))


class _Walk:
    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.whole: dict[int, dict[str, Any]] = {}

    def merged(self, node: dict[str, Any]) -> dict[str, Any]:
        """The mapping with what `<<` brings in; its own keys win. Each is put together once."""
        if _MERGE not in node:
            return node
        if id(node) not in self.whole:
            self.whole[id(node)] = node  # one that brings itself in gets no further
            others = node[_MERGE] if isinstance(node[_MERGE], list) else [node[_MERGE]]
            found: dict[str, Any] = {}
            for other in reversed(others):
                if isinstance(other, dict):
                    found |= self.merged(other)
            self.whole[id(node)] = found | {key: value for key, value in node.items() if key != _MERGE}
        return self.whole[id(node)]

    def node(self, node: Any, names: tuple[str, ...], variables: Mapping[str, str]) -> Iterator[Copied]:
        """What a node and all below it start."""
        if not isinstance(node, list | dict) or id(node) in self.seen:
            return
        self.seen.add(id(node))
        if isinstance(node, list):
            if node and all(isinstance(one, str) for one in node):
                yield from _listed(node, names)
                return
            for one in node:
                yield from self.node(one, names, variables)
        else:
            yield from self.mapping(self.merged(node), names, variables)

    def _whole_service(self, said: dict[str, Any]) -> dict[str, Any]:
        """A service with the parts of it that are merged too."""
        whole = self.merged(said)
        return {key: self.merged(one) if isinstance(one, dict) else one for key, one in whole.items()}

    def mapping(self, node: dict[str, Any], names: tuple[str, ...], variables: Mapping[str, str]) -> Iterator[Copied]:
        name = _name(node)
        names = (*names, name) if name and name not in names else names
        if isinstance(node.get("services"), dict):
            for service, said in node["services"].items():
                if isinstance(said, dict):
                    yield from _service(service, self._whole_service(said))
            return
        if "image" in node and ({"command", "args"} & set(node)):
            yield from _container(node, names)
            return
        variables = {**variables, **_environment(node.get("envs")), **_environment(node.get("env"))}
        image = _task_image(node.get("resources"))
        for key, one in node.items():
            if isinstance(one, str) and key not in ("setup",) and _STARTS.search(one):
                for copied in _script(one, variables):
                    place = copied.place or "/".join(names)
                    yield replace(copied, place=place, image=copied.image or image, line=0)
            else:
                yield from self.node(one, (*names, *_said_by(key)), variables)


_FRAME = set(
    "spec template podTemplate leaderWorkerTemplate containers initContainers components items data jobs steps tasks "
    "services extraPodSpec mainContainer values metadata pod job replicaSpecs worker_spec".split()
)
"""Keys that hold something and do not say what."""


def _said_by(key: str) -> tuple[str, ...]:
    """What a key says about the engine below it."""
    return () if key in _FRAME else (key.removesuffix("Template"),)


def _name(node: Mapping[str, Any]) -> str:
    named = node.get("name")
    about = node.get("metadata")
    if not isinstance(named, str) and isinstance(about, dict):
        named = about.get("name")
    return named if isinstance(named, str) else ""


def _listed(words: list[str], names: tuple[str, ...]) -> Iterator[Copied]:
    """A list of words, as programs give one to another."""
    if any(_STARTS.search(word) for word in words):
        yield from (replace(one, place="/".join(names), line=0) for one in _tried(in_words(list(words), {})))


def _tried(found: Iterator[Copied]) -> Iterator[Copied]:
    """What is found, up to where something cannot be read."""
    try:
        yield from found
    except InputError:
        return


def _script(text: str, variables: Mapping[str, str]) -> Iterator[Copied]:
    """A script inside a document; what is no shell starts nothing."""
    try:
        yield from list(in_shell(text, variables))
    except InputError:
        return


def _environment(said: Any) -> dict[str, str]:
    """Variables with values, from a mapping, a list of NAME=VALUE, or a list of name and value."""
    if isinstance(said, dict):
        return {
            str(name): value for name, value in said.items() if isinstance(value, str) and value not in ("", "null")
        }
    found: dict[str, str] = {}
    for one in said if isinstance(said, list) else ():
        if isinstance(one, str):
            name, equals, value = one.partition("=")
            if equals:
                found[name] = value
        elif isinstance(one, dict) and isinstance(one.get("value"), str):
            found[str(one.get("name", ""))] = one["value"]
    return found


def _task_image(resources: Any) -> str:
    """The image of a SkyPilot task."""
    image = resources.get("image_id") if isinstance(resources, dict) else None
    return image.removeprefix("docker:") if isinstance(image, str) else ""


def _words(said: Any) -> list[str]:
    if isinstance(said, str):
        try:
            return shlex.split(said)
        except ValueError as error:
            raise InputError(
                f"the command cannot be read: {error}", where="command", hint="Check its quotes."
            ) from error
    return [one for one in said if isinstance(one, str)] if isinstance(said, list) else []


# --- compose ---------------------------------------------------------------------------------------------------------


def _service(name: str, said: dict[str, Any]) -> Iterator[Copied]:
    image = _interpolated(said.get("image", "")) if isinstance(said.get("image"), str) else ""
    entry = [_interpolated(word) for word in _words(said.get("entrypoint"))]
    words = [_interpolated(word) for word in _words(said.get("command"))]
    given = {key: _interpolated(value) for key, value in _environment(said.get("environment")).items()}
    if not _STARTS.search(" ".join((*entry, *words))) and engine_of_image(image) is None:
        return
    host_network = said.get("network_mode") == "host"
    docker = Docker(
        image=image,
        host_network=host_network,
        host_ipc=said.get("ipc") == "host",
        shared_memory="shm_size" in said,
        publishes=()
        if host_network
        else tuple(_interpolated(one) for one in said.get("ports", ()) if isinstance(one, str)),
        mounts=tuple(one for one in said.get("volumes", ()) if isinstance(one, str)),
    )
    profiles = _words(said.get("profiles"))
    host = f"compose {','.join(profiles)}".rstrip()
    for one in _tried(in_container([*entry, *words], given, image, docker, entry=bool(entry))):
        yield replace(one, place=name, host=host, line=0)


def _interpolated(text: str) -> str:
    """With compose's defaults; what has none stays a variable, and `$$` is one dollar."""
    return _INTERPOLATED.sub(_default, text)


def _default(found: re.Match[str]) -> str:
    name, how, other = found[1] or found[4], found[2], found[3]
    if not name:
        return "$"
    return other if how in (":-", "-") else f"${{{name}}}"


# --- pods ------------------------------------------------------------------------------------------------------------


def _container(node: dict[str, Any], names: tuple[str, ...]) -> Iterator[Copied]:
    """A container of a pod, or what stands for one in somebody's own resource."""
    image = node["image"] if isinstance(node["image"], str) else ""
    given = _environment(node.get("env"))
    entry, words = _words(node.get("command")), _words(node.get("args"))
    filled = [re.sub(r"\$\((\w+)\)", lambda one: given.get(one[1], one[0]), word) for word in (*entry, *words)]
    if not _STARTS.search(" ".join(filled)) and engine_of_image(image) is None:
        return
    for one in _tried(in_container(filled, given, image, None, entry=bool(entry))):
        yield replace(one, place="/".join(names), line=0)
