from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from k3stack.cli.main import main

DATA = Path(__file__).parent / "data"


def k3(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["k3", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    code = stopped.value.code
    return code if isinstance(code, int) else 0


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("K3_PATCHES", "VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND"):
        monkeypatch.delenv(name, raising=False)


def listing(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def states(value: dict[str, Any]) -> dict[int, str]:
    return {row["number"]: row["state"] for row in value["rows"]}


def test_the_states_of_a_release(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert k3(monkeypatch, "patches", "--version", "0.33.0", "--json") == 0
    value = listing(capsys)
    assert value["origin"] == "read"
    assert states(value)[6] == "applied"
    assert value["warnings"] == []


def test_switches_count(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KIMI_K3_FIX_MLA_GATE_SCALES", "0")
    monkeypatch.setenv("KIMI_K3_NVFP4_PER_TOKEN_ACTIVATION", "1")
    assert k3(monkeypatch, "patches", "--version", "0.31.0", "--json") == 0
    assert {3: "applied", 6: "disabled"}.items() <= states(listing(capsys)).items()


def test_what_keeps_the_patches_out_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "lora_resolver")
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert k3(monkeypatch, "patches", "--version", "0.33.0") == 0
    shown = capsys.readouterr().out
    assert "VLLM_PLUGINS=lora_resolver hides the entry point" in shown
    assert "patch 2 acts in the API server" in shown


def test_a_release_that_nobody_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert k3(monkeypatch, "patches", "--version", "0.99.0") == 2
    assert "cover 0.27.0 to 0.33.0" in capsys.readouterr().err


def test_without_an_engine_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert k3(monkeypatch, "patches", "--python", sys.executable) == 3
    assert "k3 patches --version 0.33.0" in capsys.readouterr().err
    assert k3(monkeypatch, "patches", "probe", "--json") == 3
    assert json.loads(capsys.readouterr().out)["error"]["what"].startswith("this Python has no vLLM")


def test_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert k3(monkeypatch, "patches", "log", str(DATA / "h200-engine-own-process.log")) == 0
    assert "EngineCore" in capsys.readouterr().out
    assert k3(monkeypatch, "patches", "log", str(DATA / "h200-hidden.log")) == 1
    assert "missing: patch 6" in capsys.readouterr().out
    assert k3(monkeypatch, "patches", "log", str(DATA / "no-such.log")) == 3


def test_export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert k3(monkeypatch, "patches", "export", str(tmp_path / "out"), "--json") == 0
    assert str(tmp_path / "out" / "sitecustomize.py") in json.loads(capsys.readouterr().out)
