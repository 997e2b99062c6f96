"""Answers that have to be JSON."""

from __future__ import annotations

from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Level
from k3stack.verify.session import Session
from k3stack.verify.strict import schema_fault, strict_json

_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "pets": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"kind": {"type": "string", "enum": ["cat", "dog", "fish"]}, "name": {"type": "string"}},
                "required": ["kind", "name"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
_DEFIANT = "Answer with the single word hello, in plain text, without JSON."
_STORY = (
    "Ann is 34 years old and has two pets, a cat called Tom and a dog called Rex. Give this as JSON with the keys "
    'name, age, and pets, where pets is a list of objects with the keys kind ("cat", "dog" or "fish") and name.'
)


@check(
    "json-mode",
    Level.FULL,
    "JSON mode",
    proves="response_format json_object gives one JSON object and nothing around it, streamed and not.",
    failure_means="A grammar that engages before or never after thinking; on some builds HTTP 500. Code fences around "
    "the JSON mean that no grammar is at work.",
)
async def json_mode(session: Session) -> Verdict:
    """A person and two pets, both ways; then a prompt that wants plain text."""
    return await _judge(session, {"type": "json_object"}, {"type": "object"})


@check(
    "json-schema",
    Level.FULL,
    "JSON by schema",
    proves="response_format json_schema gives JSON that fits the schema, streamed and not.",
    failure_means="The schema is only shown to the model and not enforced, or the grammar backend lacks a keyword.",
)
async def json_schema(session: Session) -> Verdict:
    """The same with its schema."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": _PERSON}}
    return await _judge(session, form, _PERSON)


async def _judge(session: Session, form: dict[str, Any], schema: dict[str, Any]) -> Verdict:
    body = session.forced(_STORY, response_format=form)
    answers = []
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        if session.untrained and answer.finish == "length":
            continue
        answers.append(answer)
        if fault := _fault(answer, schema, session.untrained):
            return failed(f"{way}: {fault}", answer.exchange())
    if not answers:
        return not_applicable("the random model's JSON was cut by max_tokens")
    if not session.untrained:  # random weights keep to a form only where it is enforced
        forced = await session.endpoint.stream(session.forced(_DEFIANT, response_format=form))
        if fault := _form_fault(forced, schema):
            return failed(f"stream, asked for plain text: {fault}; the format is not enforced", forced.exchange())
    if any("\n" in answer.content.strip() for answer in answers):
        return warned("valid, but spread over lines; Moonshot's API gives compact JSON", answers[0].exchange())
    return passed(f"valid JSON: {answers[0].content[:60]}", answers[0].exchange())


def _form_fault(answer: Answer, schema: dict[str, Any]) -> str:
    if answer.faults:
        return "; ".join(answer.faults)
    try:
        value = strict_json(answer.content)
    except ValueError as error:
        return f"no JSON ({error}): {answer.content[:60]!r}"
    return schema_fault(value, schema)


def _fault(answer: Answer, schema: dict[str, Any], untrained: bool) -> str:
    if fault := _form_fault(answer, schema):
        return fault
    value = strict_json(answer.content)
    if not untrained and (value.get("name"), value.get("age")) != ("Ann", 34):
        return f"JSON that does not say what was asked: {answer.content[:80]}"
    return ""
