"""Write docs/rules.md from the rules themselves: every one with its condition, reason, source and date."""

from pathlib import Path
from typing import Any

from k3stack.engines.pairs import PairRule, pair_rules
from k3stack.engines.releases import versions
from k3stack.engines.rules import Rule, rules

PAGE = Path(__file__).with_name("rules.md")

HEAD = """# Rules

What k3stack knows about serving Kimi-K3 with vLLM and SGLang, one rule a row. This page is written from
`src/k3stack/engines/data/*.yaml` by `docs/write_rules.py`; do not edit it by hand.
"""


def write() -> str:
    """The page's text."""
    parts = [HEAD]
    for engine in ("vllm", "sglang"):
        all_rules = rules(engine)
        parts.append(f"\n## {engine}\n\nReleases: {', '.join(versions(engine))}. {len(all_rules)} rules.\n")
        for title, chosen in (
            ("Not allowed", [rule for rule in all_rules if rule.refuse and not rule.is_check]),
            ("What is set", [rule for rule in all_rules if not rule.refuse and not rule.is_check]),
            ("Checks of a finished command", [rule for rule in all_rules if rule.is_check]),
        ):
            parts.append(f"\n### {title}\n\n| rule | when | does | why | source |\n|---|---|---|---|---|\n")
            parts += [_row(rule) for rule in chosen]
        parts.append(
            "\n### Prefill and decode together\n\n| rule | about | must | why | source |\n|---|---|---|---|---|\n"
        )
        parts += [_pair(rule) for rule in pair_rules(engine)]
    return "".join(parts)


def _row(rule: Rule) -> str:
    cells = (f"`{rule.id}`", _when(rule), _does(rule), rule.why, f"{rule.source}, {rule.date}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _pair(rule: PairRule) -> str:
    must = rule.must.replace("-", " ") + (f"; nothing said is `{rule.standard}`" if rule.standard else "")
    cells = (f"`{rule.id}`", f"`{rule.of}`", must, f"{rule.why} {rule.fix}", f"{rule.source}, {rule.date}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _when(rule: Rule) -> str:
    said = [f"{key} {_text(value)}" for key, value in rule.when.items()]
    if rule.unless:
        said.append("unless " + ", ".join(f"{key} {_text(value)}" for key, value in rule.unless.items()))
    said += [f"`{key}` {_text(value)}" for key, value in rule.flags.items()]
    return "; ".join(said) or "always"


def _does(rule: Rule) -> str:
    if rule.refuse:
        return rule.fix
    said = [f"`--{name}` {_text(value)}" for name, value in rule.set.items()]
    said += [f"no `--{name}`" for name in rule.unset]
    said += [f"`{name}={value}`" for name, value in rule.env.items()]
    said += [f"image `{rule.image}`"] if rule.image else []
    said += [f"digest of {version} `{digest}`" for version, digest in rule.digests.items()]
    said += [f"digest `{rule.digest}`"] if rule.digest else []
    said += [f"patch `{name}`" for name in rule.patches]
    said += [f"`{name}` must be {_text(value)}" for name, value in rule.needs.items()]
    said += [rule.note] if rule.note else []
    return "; ".join(said)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is True else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(write())
