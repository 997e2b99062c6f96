# Everything here starts from a machine with Python 3.11+ and make, nothing else.
PYTHON ?= python3
UV_VERSION := 0.13.9
# Optional parts to install, for example: make test EXTRAS="--extra gpu"
EXTRAS ?=

# Engines and our own processes are started some hundred times: without bytecode each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

UV := .tools/bin/uv
K3 := .venv/bin/k3

.PHONY: help setup demo test lint test-slow test-engines test-releases docs clean

help:
	@echo "make demo          set up, then go the whole line: make, convert, compare, plan, serve, check, report"
	@echo "make test          set up, then lint, type-check and run the default suite"
	@echo "make test-slow     the slower suites, without engines"
	@echo "make test-engines  the suites against real engine wheels"
	@echo "make test-releases the patches against all other vLLM releases"
	@echo "make docs          redraw the generated parts of docs/"

setup: .venv/.ready

$(UV):
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready: $(UV) pyproject.toml uv.lock
	$(UV) sync --quiet --frozen --system-certs --python $(PYTHON) $(EXTRAS)
	@touch $@

demo: setup
	@PATH="$(CURDIR)/.venv/bin:$$PATH" sh examples/demo.sh

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

test: lint
	.venv/bin/pytest -n 2

test-slow: setup
	.venv/bin/pytest -n 2 -m "slow and not engines"

# Engines are installed into .engines on first use: some minutes and tens of GB. K3_ENGINES names another folder.
test-engines: setup
	.venv/bin/pytest -n 2 --dist loadfile -m "engines and not slow" tests/engines

# The same for every other vLLM release that the patches know.
test-releases: setup
	.venv/bin/pytest -n 2 --dist loadgroup -m "engines and slow" tests/engines

docs: setup
	.venv/bin/python docs/draw_house.py
	.venv/bin/python docs/write_rules.py
	.venv/bin/python docs/write_checks.py
	.venv/bin/python docs/write_troubleshooting.py

clean:
	rm -rf .venv .tools .engines .mypy_cache .pytest_cache .ruff_cache .hypothesis demo
