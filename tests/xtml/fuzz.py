"""Fuzz the parser with atheris, in an environment of its own.

    uv venv FUZZ && uv pip install --python FUZZ/bin/python atheris
    PYTHONPATH=src:. FUZZ/bin/python -m tests.xtml.fuzz tests/xtml/fuzz_corpus -dict=tests/xtml/fuzz.dict

Keep what it finds small: run again with -merge=1 NEW OLD.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import sys


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["k3stack.xtml"]):
        from tests.xtml.laws import check

    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
