"""What the scripted K3 answers: it really reads the prompt, finds codes in it, calls tools and sees colours.

It is no table of answers: a changed prompt changes the answer, which is what the checks rely on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

Call = tuple[str, dict[str, Any]]


@dataclass
class Thought:
    reasoning: str
    content: str
    calls: list[Call] = field(default_factory=list)
    endless: bool = False


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")


def images_of(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    return [part["image_url"]["url"] for part in content if "image_url" in part] if isinstance(content, list) else []


def read_png(address: str) -> tuple[int, tuple[int, int, int]]:
    """(side, colour of the first pixel). Raises ValueError for anything else than a whole PNG."""
    if not address.startswith("data:image/png;base64,"):
        raise ValueError("only data: addresses are read")
    data = base64.b64decode(address.partition(",")[2])
    if not data.startswith(b"\x89PNG\r\n\x1a\n") or b"IEND" not in data:
        raise ValueError("not a PNG")
    (side,) = struct.unpack(">I", data[16:20])
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    pixels = zlib.decompress(data[start + 4 : start + 4 + length])
    return side, (pixels[1], pixels[2], pixels[3])


def colour_name(colour: tuple[int, int, int]) -> str:
    names = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0)}
    return min(names, key=lambda name: sum((a - b) ** 2 for a, b in zip(names[name], colour, strict=True)))


def think(body: dict[str, Any]) -> Thought:
    """What a trained model answers."""
    messages = body["messages"]
    last = messages[-1]
    text = text_of(last)
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []}
    choice = body.get("tool_choice", "auto")
    if tools and choice != "none":
        calls = [call for call in wanted_calls(text) if call[0] in tools]
        if isinstance(choice, dict):
            name = choice["function"]["name"]
            calls = [call for call in calls if call[0] == name] or [(name, sample(tools[name]["parameters"]))]
        if choice == "required" and not calls:
            calls = [(name, sample(tool["parameters"])) for name, tool in list(tools.items())[:1]]
        if body.get("parallel_tool_calls") is False:
            calls = calls[:1]
        if calls:
            spoken = re.search(r"First say exactly (\S+) as your answer", text)
            return Thought("The user wants a tool.", spoken[1] if spoken else "", calls)
    if form := body.get("response_format"):
        return Thought("JSON is wanted.", structured(text, form))
    if "twelve random" in text:
        return Thought("I draw.", " ".join(chance(body).choices(WORDS, k=12)))
    return said(text, messages, last)


WORDS = "apple bridge cedar dolphin ember forest garnet harbor island jasmine kettle lagoon maple nectar".split()


def chance(body: dict[str, Any]) -> random.Random:
    """The same dice for the same request at temperature 0 or with a seed, others each time without."""
    drawn = body.get("temperature", 1) and body.get("top_p", 1) > 0.001
    if drawn and "seed" not in body:
        return random.Random()
    return random.Random(json.dumps([body["messages"], body.get("seed") if drawn else 0]))


def said(text: str, messages: list[dict[str, Any]], last: dict[str, Any]) -> Thought:
    if found := re.search(r"Reply with exactly this text(?: and nothing else)?: (.*)", text, re.DOTALL):
        return Thought("I copy it.", found[1])
    if found := re.search(r"What is the code of (.+?) in this register", text):
        told = "\n".join(map(text_of, messages))
        code = re.search(rf"the code of {re.escape(found[1])} is ([A-Z]{{3}}-\d{{4}})", told)
        return Thought(f"I look for {found[1]}.", code[1] if code else "It is not there.")
    if found := re.search(r"What are the codes of these names in this register, in this order: (.+?)\?", text):
        codes = dict(re.findall(r"the code of (.+?) is ([A-Z]{3}-\d{4})", text))
        return Thought("I look for all.", " ".join(codes.get(name, "none") for name in found[1].split("; ")))
    if text.startswith("What are the codes of alpha"):
        told = " ".join(map(text_of, messages[:-1]))
        return Thought("I look.", " ".join(re.findall(r"The code of \w+ is ([A-Z]{3}-\d{4})", told)))
    if "Ann is 34" in text:
        return Thought("JSON is asked for.", f"```json\n{structured(text, {})}\n```")
    if found := re.search(r"Count from 1 to (\d+)", text):
        return Thought("I count.", " ".join(map(str, range(1, int(found[1]) + 1))))
    if "from 1 to 200000" in text:
        return Thought("This is long.", " ".join(map(str, range(1, 40_001))), endless=True)
    if "17 * 23" in text:
        return Thought("17 * 23 = 17 * 20 + 17 * 3 = 340 + 51.", "391")
    if "Which station code did the call for Oslo return" in text:
        return Thought("I look at the results.", station(messages))
    if "Which code was it" in text:
        return Thought("I remember.", re.findall(r"[A-Z]{3}-\d{4}", text_of(messages[0]))[0])
    if pictures := images_of(last):
        return Thought("I look.", " ".join(colour_name(read_png(one)[1]) for one in pictures))
    if "story" in text or "rivers" in text:
        return Thought("A story.", "Once upon a time there was a river that ran to the sea. " * 40)
    if found := re.search(r"What is (\d+) plus (\d+)", text):
        return Thought("I add.", str(int(found[1]) + int(found[2])))
    return Thought("Short is best.", "ok")


def station(messages: list[dict[str, Any]]) -> str:
    calls = {call["id"]: call["function"]["arguments"] for m in messages for call in m.get("tool_calls") or []}
    results = {m["tool_call_id"]: text_of(m) for m in messages if m["role"] == "tool"}
    mine = next(one for one, arguments in calls.items() if "Oslo" in arguments)
    try:
        return str(json.loads(results.get(mine, "{}")).get("station", "It is not there."))
    except ValueError:
        return "It is not there."


def wanted_calls(text: str) -> list[Call]:
    if text.startswith("Make exactly these tool calls"):
        lines = [line.partition(" ") for line in text.splitlines()[1:]]
        return [(name, json.loads(arguments)) for name, _, arguments in lines]
    patterns: list[tuple[str, Any]] = [
        (r"weather in (\w+)", lambda m: ("get_weather", {"city": m[1]})),
        (r"Book a table for (\d+) people at restaurant (\w+)",
         lambda m: ("book_table", {"restaurant": m[2], "people": int(m[1])})),
        (r"Convert (\d+) (\w+) to (\w+)",
         lambda m: ("convert_money", {"amount": int(m[1]), "source": m[2], "target": m[3]})),
        (r"Remind me to (.+) in (\d+) minutes, priority (\w+)",
         lambda m: ("set_reminder", {"text": m[1], "minutes": int(m[2]), "priority": m[3]})),
        (r"Save a note titled (\w+) with the text: (.+)\.", lambda m: ("save_note", {"title": m[1], "text": m[2]})),
        (r"Call submit", lambda m: ("submit", {})),
    ]  # fmt: skip
    found = [make(match) for pattern, make in patterns if (match := re.search(pattern, text))]
    return [call for call in found if call[0] != "submit"]


def structured(text: str, form: dict[str, Any]) -> str:
    if "Ann is 34" in text:
        pets = [{"kind": "cat", "name": "Tom"}, {"kind": "dog", "name": "Rex"}]
        return json.dumps({"name": "Ann", "age": 34, "pets": pets}, separators=(",", ":"))
    return json.dumps(sample((form.get("json_schema") or {}).get("schema") or {"type": "object"}))


def sample(schema: dict[str, Any]) -> Any:
    """A value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: sample(schema["properties"][name]) for name in schema.get("required", [])}
    if kind == "array":
        return [sample(schema["items"])] * max(schema.get("minItems", 1), 1)
    least = schema.get("minimum", 1)
    return {"string": "some text", "integer": least, "number": 1.5, "boolean": True, "null": None}[kind]


def babble(body: dict[str, Any], off: bool) -> Thought:
    """What random weights answer: nothing but a function of the prompt and chance, that never ends by itself."""
    drawn = chance(body).random() if body.get("temperature", 1) and body.get("top_p", 1) > 0.001 else 0
    seen = json.dumps([body["messages"], body.get("tools"), off, drawn], sort_keys=True)
    dice = random.Random(hashlib.sha256(seen.encode()).digest())
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []}
    choice = body.get("tool_choice", "auto")
    if tools and choice != "auto" and choice != "none":
        name = choice["function"]["name"] if isinstance(choice, dict) else dice.choice(sorted(tools))
        return Thought("".join(dice.choices("abcdefgh ", k=12)), "", [(name, sample(tools[name]["parameters"]))])
    if form := body.get("response_format"):
        schema = (form.get("json_schema") or {}).get("schema") or {"type": "object"}
        return Thought("".join(dice.choices("abcdefgh ", k=12)), json.dumps(sample(schema), separators=(",", ":")))
    noise = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz  ", k=20_000))
    return Thought("", noise, endless=True) if off else Thought(noise, "", endless=True)
