"""The endpoint is there, knows its model, and answers a plain question with a well-formed answer."""

from __future__ import annotations

import json

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import CHAT
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Exchange, Figure, Level
from k3stack.verify.session import Session


@check(
    "models",
    Level.QUICK,
    "Models and health",
    proves="The endpoint lists the model that is asked for, and says that it is healthy.",
    failure_means="Another --served-model-name than clients use, or a router in front of a server that is not ready.",
    limit_s=30,
)
async def models(session: Session) -> Verdict:
    """The model is listed; /health, where there is one, is 200."""
    reply = await session.endpoint.get("/v1/models")
    evidence = Exchange("GET /v1/models", reply.text[:800])
    known = session.knowledge
    if known.model not in known.models:
        return failed(f"/v1/models does not list {known.model!r}; it lists {', '.join(known.models)}", evidence)
    health = await session.endpoint.get("/health")
    if health.status >= 500:
        return failed(f"/health answers HTTP {health.status}", Exchange("GET /health", health.text[:400]))
    if known.limit is None:
        return warned(f"{known.model} is listed, without max_model_len: clients cannot know its context", evidence)
    figure = Figure("context", known.limit, "tokens")
    return passed(f"{known.model} is listed with a context of {known.limit:,} tokens", evidence, figures=[figure])


@check(
    "key",
    Level.QUICK,
    "The key is asked for",
    proves="Who has no key, or a wrong one, gets no answer.",
    failure_means="A gateway that does not look at keys, or an engine without --api-key that can be reached past it: "
    "whoever finds the address uses it.",
    limit_s=30,
)
async def key(session: Session) -> Verdict:
    """The smallest request without the key and with a wrong one; only where the run was given a key."""
    if session.target.key_variable is None:
        return not_applicable("no key was given, so none is expected: --key-variable names one")
    body = json.dumps(session.brief("Say ok.", max_tokens=1)).encode()
    for what, header in (("no key", ""), ("a wrong key", "Bearer no-such-key")):
        reply = await session.endpoint.post(CHAT, body, authorization=header)
        evidence = Exchange(f"a chat request with {what}", f"HTTP {reply.status}\n{reply.text[:400]}")
        if reply.status == 200:
            return failed(f"a request with {what} is answered", evidence)
        if reply.status >= 500:
            return failed(f"a request with {what} gives HTTP {reply.status} instead of 401", evidence)
    return passed(f"without the key: HTTP {reply.status}", evidence)


@check(
    "chat",
    Level.QUICK,
    "A plain chat",
    proves="A question gets an answer of the right form that does what was asked.",
    failure_means="Wrong chat template or tokenizer, broken weights or kernels (degenerate text), or a parser that "
    "puts the answer in the wrong field.",
)
async def chat(session: Session) -> Verdict:
    """The model repeats a code. Random weights only have to produce a well-formed answer."""
    code = session.code()
    answer = await session.ask(f"Reply with exactly this text and nothing else: {code}", tokens=32)
    if fault := form_fault(answer):
        return failed(fault, answer.exchange())
    figures = [Figure("seconds for the answer", answer.seconds, "s")]
    if session.untrained:
        if not answer.text:  # random weights may well choose nothing but special tokens
            return not_applicable("the random model's tokens give no text", answer.exchange())
        return passed("an answer of the right form; random weights mean nothing", answer.exchange(), figures=figures)
    if code not in answer.content:
        if code in answer.reasoning and not answer.content:
            return failed(f"the answer {code} stands in the reasoning and the content is empty", answer.exchange())
        return failed(f"asked to repeat {code}, it says {answer.content[:80]!r}", answer.exchange())
    if answer.content.count(code) > 1:
        return failed(f"asked to say {code} once, it says it {answer.content.count(code)} times", answer.exchange())
    if answer.finish != "stop":
        return failed(f"a short answer ends with finish_reason {answer.finish!r}, not 'stop'", answer.exchange())
    return passed(f"it repeats {code}", answer.exchange(), figures=figures)


def form_fault(answer: Answer) -> str:
    """What is wrong with the form of an answer, or nothing."""
    if answer.faults:
        return "; ".join(answer.faults)
    if not answer.id:
        return "the answer has no id"
    if answer.finish not in ("stop", "length", "tool_calls"):
        return f"finish_reason is {answer.finish!r}"
    if answer.finish == "tool_calls" and not answer.calls:
        return "finish_reason is 'tool_calls' and there is no call"
    return ""
