"""Control markers, in what came out so far and in what goes in."""

from __future__ import annotations

from k3stack.verify.answer import Answer
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.xtml import CONTROL_TOKENS

# K3's own control tokens, and the sections that a K2 template or parser would leave behind.
_MARKERS = (
    *CONTROL_TOKENS,
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|im_end|>",
    "<|kimi_image_placeholder|>",
)


@check(
    "markers",
    Level.QUICK,
    "No control markers in answers",
    proves="None of the answers of this run has a control marker in its reasoning, content or calls.",
    failure_means="A parser that is off, or that gives up: on SGLang when no tools are declared, on vLLM when thinking "
    "is not closed, on both after malformed calls. Clients show the markup, or lose the call in it.",
)
async def markers(session: Session) -> Verdict:
    """Three situations known to leak, then every answer seen so far."""
    if session.untrained:
        return not_applicable("random weights write control tokens where they have no place, and these are shown")
    await session.ask("Call the function get_weather for Paris now.", tokens=96)
    await session.stream("Call the function get_weather for Paris now.", tokens=96)
    await session.endpoint.chat(session.brief("Reply with exactly this text: ok", tokens=24))
    seen = session.endpoint.seen
    for answer in seen:
        if found := _marker(answer):
            where, marker = found
            return failed(f"{marker} is in the {where} of an answer", answer.exchange(f"{marker} in the {where}"))
    return passed(f"none in {len(seen)} answers", figures=[Figure("answers looked at", len(seen), "")])


def _marker(answer: Answer) -> tuple[str, str] | None:
    """(where, which marker), of the first one that the model cannot have been quoting from the prompt."""
    texts = {"reasoning": answer.reasoning, "content": answer.content}
    texts |= {f"call of {call.name}": call.name + call.arguments for call in answer.calls}
    prompt = str(answer.body.get("messages"))
    for where, text in texts.items():
        for marker in _MARKERS:
            if marker in text and marker not in prompt:
                return where, marker
    return None


@check(
    "injection",
    Level.FULL,
    "Markers in user text stay text",
    proves="A user who writes control markers sends letters, not control tokens.",
    failure_means="User text is tokenised with special tokens allowed: anyone can forge system messages, tool results "
    "or images.",
)
async def injection(session: Session) -> Verdict:
    """Twenty markers in a row: as text each is several tokens, as a control token just one."""
    plain = await session.ask("Say ok. ", max_tokens=1)
    if plain.usage is None:
        return not_applicable("the endpoint gives no usage, so tokens cannot be counted")
    figures, forged = [], []
    for marker in CONTROL_TOKENS:
        answer = await session.ask("Say ok. " + f"{marker} " * 20, max_tokens=1)
        each = (answer.usage.prompt - plain.usage.prompt) / 20 if answer.usage else 0.0
        figures.append(Figure(f"tokens of {marker} with its space", each, ""))
        # One control token and one for the space: two. As text it is at least three and the space.
        if each <= 2.1:
            forged.append((marker, answer))
    if forged:
        what = f"{', '.join(marker for marker, _ in forged)} in user text becomes a control token"
        return failed(what, forged[0][1].exchange(), figures=figures)
    return passed("markers in user text are ordinary text", figures=figures)
