"""What users get wrong, over all verbs: the error names the file or the option, and the next step."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from k3stack.checkpoint.tiny import write_tiny
from k3stack.spec.schemes import Scheme
from tests.cli.run import k3

BAD_CONFIGS = {
    "empty": (b"", "config.json: is not JSON that can be read"),
    "cut": (b"{", "config.json: is not JSON that can be read"),
    "no text": (b"\xff\xfe\x00", "config.json: is not JSON that can be read"),
    "a list": (b"[1]", "config.json: is not a JSON object"),
    "deep": (b"[" * 100_000, "config.json: is not JSON that can be read (nested too deeply)"),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "tiny"
    write_tiny(folder, Scheme.MXFP4, 0)
    return folder


def refused(*arguments: str, code: int, says: str) -> None:
    """The verb ends with this code, says this as its error, and what to do next."""
    ran = k3(*arguments)
    assert ran.code == code, ran
    assert says in ran.err and "Traceback" not in ran.err, ran.err
    assert "\nnext:  " in ran.err, ran.err


@pytest.mark.parametrize(("content", "says"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
@pytest.mark.parametrize(
    "verb",
    [["inspect"], ["plan", "--hardware", "b300"], ["recipe", "--hardware", "b300"], ["preflight"], ["up", "--dry-run"]],
    ids=lambda verb: str(verb[0]),
)
def test_a_config_that_is_none(tmp_path: Path, verb: list[str], content: bytes, says: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    refused(verb[0], str(tmp_path), *verb[1:], code=3, says=says)


def cut_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:100])
    return f"{shard}: has 100 bytes, and its header alone needs"


def list_of_a_config(folder: Path) -> str:
    (folder / "config.json").write_text("[]")
    return "config.json: is not a JSON object"


def no_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return "config.json: is not there"


@pytest.mark.parametrize("damage", [cut_shard, list_of_a_config, no_config])
def test_a_damaged_checkpoint_is_not_served(tiny: Path, tmp_path: Path, damage: Callable[[Path], str]) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "t"))
    refused("serve", str(folder), "--port", "0", code=3, says=damage(folder))


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--device", "x"], 3, "--device: the device x is not there"),
        (["--pages", "2000000000"], 3, "--pages: there is not memory for 2,000,000,000 pages of 16 tokens"),
        (["--host", "203.0.113.9"], 3, "203.0.113.9:0: cannot listen"),
    ],
)
def test_options_that_this_machine_cannot_follow(tiny: Path, options: list[str], code: int, says: str) -> None:
    refused("serve", str(tiny), "--port", "0", *options, code=code, says=says)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "t", "--threads", "99999999999"],
        ["serve", "t", "--max-running", "99999999999999999999"],
        ["serve", "t", "--page-tokens", "99999999999999"],
        ["guard", "--upstream", "http://127.0.0.1:1", "--port", "99999"],
        ["tiny", "t", "--layers", "1000000"],
        ["tiny", "t", "--experts", "1000000"],
    ],
)
def test_numbers_beyond_reason_are_refused_by_their_option(arguments: list[str]) -> None:
    ran = k3(*arguments)
    assert ran.code == 2 and f"'{arguments[-2]}'" in ran.err, ran


@pytest.mark.parametrize("address", ["http://[::1", "http://", "http://127.0.0.1:99999"])
@pytest.mark.parametrize("verb", ["check ?", "doctor ?", "parity ? x", "guard --upstream ?"])
def test_an_address_that_is_none(verb: str, address: str) -> None:
    refused(*verb.replace("?", address).split(), code=2, says=address)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe\x00", "cannot be read: it is no UTF-8"),
        (b"[" * 100_000, "line 1: is not JSON"),
    ],
)
def test_prompts_that_cannot_be_read(tiny: Path, tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "prompts"
    if content is not None:
        path.write_bytes(content)
    refused("parity", str(tiny), str(tiny), "--prompts", str(path), code=3, says=f"{path}: {says}")


@pytest.mark.parametrize(
    "verb",
    ["plan kimi-k3 --from-log ?", "patches log ?", "recipe --from @?", "recipe --from ?"],
    ids=lambda verb: verb.partition(" -")[0] + verb[-2:],
)
@pytest.mark.parametrize(("there", "says"), [(False, "No such file"), (True, "Is a directory")])
def test_a_file_that_cannot_be_read(tmp_path: Path, verb: str, there: bool, says: str) -> None:
    path = tmp_path / "x"
    if there:
        path.mkdir()
    refused(*verb.replace("?", str(path)).split(), code=3, says=f"{path}: cannot be read: {says}")


def test_an_empty_log_is_not_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("\n")
    refused("doctor", str(path), code=3, says=f"{path}: is empty")


def test_a_log_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(Random(0).randbytes(100_000))
    refused("doctor", str(path), code=3, says=f"{path}: is no text")
    path.write_bytes(bytes(100_000))
    refused("doctor", str(path), code=3, says=f"{path}: is empty")


def test_a_command_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe\x00")
    refused("recipe", "--from", f"@{path}", code=3, says=f"{path}: cannot be read: it is no UTF-8")


@pytest.mark.parametrize("given", ["{path}", "@{path}", "-"])
def test_a_command_comes_from_a_file_or_standard_input(tmp_path: Path, given: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text("vllm serve moonshotai/Kimi-K3 --no-such-flag\n")
    with path.open() as file:
        words = [sys.executable, "-c", "from k3stack.cli.main import main; main()", "recipe", "--from"]
        ran = subprocess.run([*words, given.format(path=path)], stdin=file, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "--no-such-flag" in ran.stdout


@pytest.mark.parametrize(
    "verb",
    [
        "parity a b --report ?.html",
        "check http://127.0.0.1:1 --html ?.html",
        "check http://127.0.0.1:1 --junit ?.html",
        "plan --hardware b300 --plot ?.png",
        "engines snapshot vllm ?.json",
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, verb: str) -> None:
    nowhere, folder = tmp_path / "nowhere" / "x", tmp_path / "x"
    refused(*verb.replace("?", str(nowhere)).split(), code=2, says=f"there is no folder {nowhere.parent}")
    for ending in (".html", ".png", ".json"):
        folder.with_suffix(ending).mkdir()
    refused(*verb.replace("?", str(folder)).split(), code=2, says=" is a folder")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("recipe --translate", "--translate: has no effect without --from"),
        ("recipe --python x", "--python: has no effect without --check"),
        ("recipe --image x", "--image: has no effect without --check"),
        ("plan --goal latency --tp 8", "--tp: has no effect with --goal"),
        ("plan --goal latency --pp 2", "--pp: has no effect with --goal"),
        ("plan --goal latency --plot x.png", "--plot: has no effect with --goal"),
    ],
)
def test_an_option_that_would_do_nothing(words: str, says: str) -> None:
    refused(*words.split(), "--hardware", "b300", code=2, says=says)


@pytest.mark.parametrize(("option", "known"), [("--on-exhausted", "pass, error"), ("--source", "parsed, raw")])
def test_a_word_that_an_option_does_not_know(option: str, known: str) -> None:
    ran = k3("guard", "--upstream", "http://127.0.0.1:1", option, "x")
    assert ran.code == 2 and f"error: {option}: 'x' is none of {known}" in ran.err


@pytest.mark.parametrize("verb", [["up", "--check", "none"], ["status"], ["down"]], ids=lambda verb: str(verb[0]))
def test_a_state_that_cannot_be_kept(tiny: Path, tmp_path: Path, verb: list[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    more = [str(tiny)] if verb[0] == "up" else []
    refused(verb[0], *more, *verb[1:], "--state", str(file), code=3, says=f"{file}/state.json: cannot be read")
    assert file.read_text() == ""


def test_the_error_of_a_full_disk_is_json_too(tmp_path: Path) -> None:
    ran = k3("inspect", str(tmp_path / ("x" * 300)), "--json")
    assert json.loads(ran.out)["error"]["next"] == "Give a shorter name."
