"""How to talk to the endpoint: snippets that work as they are."""

from __future__ import annotations

from k3stack.recipe.deployment import Deployment

__all__ = ["CLIENT_TIMEOUT_SECONDS", "client_snippets"]

CLIENT_TIMEOUT_SECONDS = 3600
"""K3 always reasons, and long; the SDK's standard of 600 s cuts answers off (vLLM recipe, client)."""

_SAMPLING = """\
# Sampling (model card): temperature 1.0; top_p 0.95 for single answers, 1.0 for agents; no penalties, n=1.
# reasoning_effort: low, high or max (the standard)."""


_RAW = ',\n       "skip_special_tokens": false, "spaces_between_special_tokens": false'


def client_snippets(deployment: Deployment) -> str:
    """Python (openai SDK), a picture, and curl, for this endpoint on its own machine."""
    name = str(deployment.roles[0].command.flag("served-model-name"))
    url = f"http://127.0.0.1:{deployment.endpoint.port}/v1"
    text_only = deployment.roles[0].command.flag("language-model-only") is True
    if not any(role.command.flag("reasoning-parser") for role in deployment.roles):
        return "\n".join([_SAMPLING, _raw_python(url, name), _curl(url, name, _RAW)])
    return "\n".join([_SAMPLING, _python(url, name), *([] if text_only else [_picture(name)]), _curl(url, name)])


def _python(url: str, name: str) -> str:
    return f"""
# Python: pip install openai
from openai import OpenAI
{_asked(url, name)}
print(answer.choices[0].message.content)"""


def _raw_python(url: str, name: str) -> str:
    """For a server without parsers: the control tokens are asked for, and the text is taken apart here."""
    more = '    extra_body={"skip_special_tokens": False, "spaces_between_special_tokens": False},\n'
    return f"""
# Python: pip install openai k3stack
from k3stack.xtml import parse
from openai import OpenAI
{_asked(url, name, more)}
message = parse(answer.choices[0].message.content, "think")
print(message.content)"""


def _asked(url: str, name: str, more: str = "") -> str:
    return f'''
client = OpenAI(base_url="{url}", api_key="none", timeout={CLIENT_TIMEOUT_SECONDS})
answer = client.chat.completions.create(
    model="{name}",
    messages=[{{"role": "user", "content": "What is 17 times 23?"}}],
    temperature=1.0,
    top_p=0.95,
{more})'''


def _picture(name: str) -> str:
    return f'''
# Python, with a picture
answer = client.chat.completions.create(
    model="{name}",
    messages=[{{"role": "user", "content": [
        {{"type": "image_url", "image_url": {{"url": "https://example.com/picture.png"}}}},
        {{"type": "text", "text": "What is in this picture?"}},
    ]}}],
    temperature=1.0,
    top_p=0.95,
)
print(answer.choices[0].message.content)'''


def _curl(url: str, name: str, more: str = "") -> str:
    asked = '[{"role": "user", "content": "Hello"}]'
    return f"""
# curl
curl --max-time {CLIENT_TIMEOUT_SECONDS} {url}/chat/completions \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": "{name}", "temperature": 1.0, "top_p": 0.95, "messages": {asked}{more}}}'"""
