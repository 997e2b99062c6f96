"""Commands that public deployers run or publish for Kimi-K3: flags as facts, with where they were read (2026-11-29).

`good`: nothing in it stops the engine or makes it answer wrongly. `rules`: what must be found.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Public:
    name: str
    source: str
    hardware: str | None
    version: str | None
    command: str
    good: bool
    rules: frozenset[str] = frozenset()


def public(name: str, source: str, hardware: str | None, version: str | None, command: str, *rules: str) -> Public:
    return Public(name, source, hardware, version, command, not rules, frozenset(rules))


PUBLIC = [
    public(
        "model card, NVFP4 on 8 x B300",
        "nvidia/Kimi-K3-NVFP4 model card, 2026-08-14",
        "b300",
        None,
        """docker run --gpus all --ipc=host --network host --shm-size 64g -e HF_TOKEN
        -v ~/.cache/huggingface:/root/.cache/huggingface -v ./runtime_patches:/patches:ro -e PYTHONPATH=/patches
        -e KIMI_K3_FIX_MM_PROMPT_UPDATES=1 -e KIMI_K3_NVFP4_SITU_G1_SCALE=1 -e KIMI_K3_FP8_PB=1
        -e VLLM_USE_DEEP_GEMM=0 -e VLLM_USE_V2_MODEL_RUNNER=1 -e VLLM_USE_RUST_FRONTEND=0
        -e VLLM_ENGINE_READY_TIMEOUT_S=3600
        vllm/vllm-openai:kimi-k3 nvidia/Kimi-K3-NVFP4 --served-model-name kimi-k3-nvfp4 --host 0.0.0.0 --port 8000
        --trust-remote-code --quantization modelopt_mixed --load-format fastsafetensors --tensor-parallel-size 8
        --moe-backend flashinfer_trtllm --gpu-memory-utilization 0.90 --max-model-len 196608
        --max-num-batched-tokens 8192 --max-num-seqs 32 --kv-cache-dtype fp8
        --attention-config '{"mla_prefill_backend":"TRTLLM_RAGGED","use_prefill_query_quantization":true}'
        --attention-backend FLASHINFER_MLA --enable-prefix-caching --enable-chunked-prefill
        --max-cudagraph-capture-size 32 --enable-auto-tool-choice --tool-call-parser kimi_k3
        --reasoning-parser kimi_k3""",
    ),
    public(
        "the same, taken to a release with the broken gate scales and without the patch",
        "nvidia/Kimi-K3-NVFP4 model card with a later image",
        "b300",
        None,
        """docker run --gpus all --ipc=host -p 127.0.0.1:8000:8000 -e HF_TOKEN -e VLLM_USE_DEEP_GEMM=0
        -e VLLM_USE_V2_MODEL_RUNNER=1 -e VLLM_USE_RUST_FRONTEND=0 -e VLLM_ENGINE_READY_TIMEOUT_S=3600
        vllm/vllm-openai:v0.33.0 nvidia/Kimi-K3-NVFP4 --trust-remote-code --quantization modelopt_mixed
        --tensor-parallel-size 8 --moe-backend flashinfer_trtllm --enable-auto-tool-choice --tool-call-parser kimi_k3
        --reasoning-parser kimi_k3""",
        "vllm-gate-scales",
    ),
    public(
        "recipe, MXFP4 on 8 x B300, live",
        "recipes.vllm.ai/moonshotai/Kimi-K3/hw/b300.json",
        "b300",
        "0.33.0",
        """VLLM_ALLREDUCE_USE_FLASHINFER=1 VLLM_ENGINE_READY_TIMEOUT_S=3600 VLLM_USE_V2_MODEL_RUNNER=1 \\
        VLLM_USE_RUST_FRONTEND=1 vllm serve moonshotai/Kimi-K3 --trust-remote-code --gpu-memory-utilization 0.95 \\
        --tensor-parallel-size 8 --load-format fastsafetensors --no-enable-flashinfer-autotune \\
        --max-model-len 1048576 --kv-cache-dtype fp8 \\
        --attention-config '{"use_prefill_query_quantization":true,"mla_prefill_backend":"TOKENSPEED_MLA"}' \\
        --enable-prefix-caching --attention-backend TOKENSPEED_MLA --prefix-match-unit 128 \\
        --enable-auto-tool-choice --tool-call-parser kimi_k3 --reasoning-parser kimi_k3""",
    ),
    public(
        "vLLM's own performance article, DSpark on 8 x B300",
        "vLLM blog, 2026-09-13, Kimi K3 performance optimization",
        "b300",
        "0.31.0",
        """VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve moonshotai/Kimi-K3 --trust-remote-code --tensor-parallel-size 8
        --load-format fastsafetensors --gpu-memory-utilization 0.9 --reasoning-parser kimi_k3
        --enable-auto-tool-choice --tool-call-parser kimi_k3 --host 0.0.0.0 --port 30000 --max-model-len auto
        --no-enable-prefix-caching --speculative-config '{"model":"RedHatAI/Kimi-K3-speculator.dspark",
        "method":"dspark","num_speculative_tokens":8,"draft_sample_method":"probabilistic",
        "rejection_sample_method":"standard"}'""",
    ),
    public(
        "the DCP pull request's command",
        "github.com/vllm-project/vllm/pull/52188",
        "b300",
        "0.33.0",
        """vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8 -dcp 8 --load-format fastsafetensors
        --no-enable-flashinfer-autotune --trust-remote-code --language-model-only
        --attention-config '{"mla_prefill_backend":"TRTLLM_RAGGED","use_prefill_query_quantization":true}'
        --kv-cache-dtype fp8 --speculative-config '{"model":"Inferact/Kimi-K3-DSpark","method":"dspark",
        "num_speculative_tokens":4,"rejection_sample_method":"standard"}'""",
        "vllm-parsers",
        "vllm-start-time",
    ),
    public(
        "the same on a release before it",
        "github.com/vllm-project/vllm/pull/52188 against 0.28.0",
        "b300",
        "0.28.0",
        """VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve moonshotai/Kimi-K3 -tp 8 -dcp 8 --trust-remote-code
        --kv-cache-dtype fp8 --enable-auto-tool-choice --tool-call-parser kimi_k3 --reasoning-parser kimi_k3
        --speculative-config '{"model":"Inferact/Kimi-K3-DSpark","method":"dspark","num_speculative_tokens":4}'""",
        "vllm-dcp-speculative",
    ),
    public(
        "a short docker command from a survey",
        "a public survey of K3 deployments",
        "b300",
        None,
        """docker run --gpus all --privileged --ipc=host -p 8000:8000 -v /path/to/models:/models
        vllm/vllm-openai:kimi-k3 --model /models/Kimi-K3 --tensor-parallel-size 8""",
        "vllm-remote-code",
        "vllm-parsers",
        "vllm-start-time",
    ),
    public(
        "flags that no release has, from an article",
        "a public article: 'conceptual example'",
        None,
        "0.33.0",
        """vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8 --max-model-len 1048576 --quantization mxfp4
        --speculative-model eagle3 --trust-remote-code""",
        "unknown flag",
    ),
    public(
        "an expert-parallel size that vLLM does not have",
        "a public deployment study for Ascend",
        None,
        "0.33.0",
        """vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8 --enable-expert-parallel --expert-parallel-size 16
        --trust-remote-code --max-model-len 32768 --max-num-seqs 64 --gpu-memory-utilization 0.85""",
        "unknown flag",
    ),
    public(
        "flag and value as one word",
        "github.com/vllm-project/recipes/issues/707",
        "h200",
        "0.33.0",
        """vllm serve moonshotai/Kimi-K3 --trust-remote-code "--gpu-memory-utilization 0.97" --tensor-parallel-size 16
        --nnodes 2 --node-rank 0 --master-addr 10.0.0.1""",
        "unknown flag",
    ),
    public(
        "MI355X with the old graph flag and image",
        "SGLang panel, July copy; llm-d manifest",
        "mi355x",
        "0.5.23",
        """SGLANG_USE_AITER=1 SGLANG_AITER_K3_OPT=1 AITER_FLYDSL_FORCE=1 AITER_SITUV2_A8W4=1 sglang serve
        --trust-remote-code --model-path moonshotai/Kimi-K3 --tp-size 8 --attention-backend triton
        --mem-fraction-static 0.85 --cuda-graph-max-bs 256 --reasoning-parser kimi_k3 --tool-call-parser kimi_k3""",
        "ambiguous flag",
    ),
    public(
        "MI355X as upstream validated it",
        "github.com/sgl-project/sglang/issues/32548",
        "mi355x",
        "0.5.20",
        """SGLANG_USE_AITER=1 SGLANG_AITER_K3_OPT=1 AITER_FLYDSL_FORCE=1 AITER_SITUV2_A8W4=1 sglang serve
        --model-path moonshotai/Kimi-K3 --trust-remote-code --tp 8 --attention-backend triton --dtype bfloat16
        --mem-fraction-static 0.85 --cuda-graph-max-bs-decode 256 --host 127.0.0.1 --port 30000 --disable-radix-cache
        --reasoning-parser kimi_k3 --tool-call-parser kimi_k3""",
    ),
    public(
        "2 x 8 H200 as the cookbook has it",
        "docs.sglang.io cookbook, Kimi-K3, hw=h200, low latency",
        "h200",
        "0.5.23",
        """NCCL_MNNVL_ENABLE=1 NCCL_CUMEM_ENABLE=1 SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0 sglang serve
        --trust-remote-code --model-path moonshotai/Kimi-K3 --tp-size 16 --nnodes 2 --node-rank <N>
        --dist-init-addr <ip>:20000 --ep-size 16 --moe-runner-backend marlin --decode-attention-backend flashmla
        --enable-symm-mem --mem-fraction-static 0.85 --reasoning-parser kimi_k3 --tool-call-parser kimi_k3
        --mamba-full-memory-ratio 0.45 --host 0.0.0.0 --port 30000""",
    ),
    public(
        "GB200 decode, high throughput, with the standard draft",
        "SGLang panel; github.com/sgl-project/sglang/issues/36844",
        "gb200",
        "0.5.23",
        """sglang serve --trust-remote-code --model-path moonshotai/Kimi-K3 --tp-size 16 --dp-size 2
        --enable-dp-attention --ep-size 16 --dcp-size 8 --nnodes 4 --node-rank {{NODE_RANK}}
        --dist-init-addr {{NODE0_IP}}:20000 --disaggregation-mode decode --disaggregation-transfer-backend nixl
        --mem-fraction-static 0.85 --max-running-requests 256 --speculative-algorithm DSPARK
        --speculative-draft-model-path RadixArk/Kimi-K3-DSpark --speculative-dspark-block-size 7
        --reasoning-parser kimi_k3 --tool-call-parser kimi_k3""",
        "sglang-check-dspark-dp-old",
    ),
    public(
        "NVFP4 kept in a link, hardware changed to H200",
        "SGLang panel, validateSelection",
        "h200",
        "0.5.23",
        """sglang serve --trust-remote-code --model-path nvidia/Kimi-K3-NVFP4 --tp-size 16 --ep-size 16 --nnodes 2
        --node-rank 0 --dist-init-addr 10.0.0.1:20000 --moe-runner-backend marlin --decode-attention-backend flashmla
        --reasoning-parser kimi_k3 --tool-call-parser kimi_k3""",
        "sglang-nvfp4-hardware",
    ),
    public(
        "NVFP4 on SGLang, model card",
        "nvidia/Kimi-K3-NVFP4 model card, 2026-08-14, with the request limit the guide asks for",
        "b300",
        "0.5.23",
        """sglang serve --trust-remote-code --model-path nvidia/Kimi-K3-NVFP4 --tp-size 8 --dcp-size 8
        --mem-fraction-static 0.85 --reasoning-parser kimi_k3 --tool-call-parser kimi_k3 --host 0.0.0.0 --port 30000
        --moe-runner-backend flashinfer_trtllm --speculative-algorithm DSPARK
        --speculative-draft-model-path RadixArk/Kimi-K3-DSpark --speculative-dspark-block-size 7
        --enable-linear-replayssm-spec --max-running-requests 32""",
    ),
    public(
        "the same without a request limit",
        "nvidia/Kimi-K3-NVFP4 model card, 2026-08-14",
        "b300",
        "0.5.23",
        """sglang serve --trust-remote-code --model-path nvidia/Kimi-K3-NVFP4 --tp-size 8 --dcp-size 8
        --reasoning-parser kimi_k3 --tool-call-parser kimi_k3 --moe-runner-backend flashinfer_trtllm
        --speculative-algorithm DSPARK --speculative-draft-model-path RadixArk/Kimi-K3-DSpark
        --speculative-dspark-block-size 7 --enable-linear-replayssm-spec""",
        "sglang-check-speculative-cap",
    ),
    public(
        "GB300 with a variable that nothing reads, over two trays",
        "a public Kubernetes guide for GB300",
        "gb300",
        "0.33.0",
        """docker run --gpus all -p 8000:8000 -e VLLM_ENABLE_K3_LATENT_MOE_TAIL_FUSION=1
        vllm/vllm-openai:kimi-k3 moonshotai/Kimi-K3 --trust-remote-code --load-format fastsafetensors
        --enable-prefix-caching --enable-auto-tool-choice --tool-call-parser kimi_k3 --reasoning-parser kimi_k3
        --served-model-name Kimi-K3 --moe-backend auto --tensor-parallel-size 8 --nnodes 2 --node-rank 0
        --no-enable-flashinfer-autotune --port 8000""",
        "vllm-check-nodes",
        "host-network",
        "shared-memory",
        "dead variable",
    ),
    public(
        "DCP on MI355X with Blackwell kernels",
        "vllm-project/recipes @8959cf64, resolver executed",
        "mi355x",
        "0.33.0",
        """vllm serve moonshotai/Kimi-K3 --trust-remote-code --tensor-parallel-size 8
        --decode-context-parallel-size 8 --dcp-comm-backend a2a --attention-backend TOKENSPEED_MLA
        --attention-config '{"mla_prefill_backend":"TRTLLM_RAGGED"}'""",
        "vllm-dcp-blackwell",
        "vllm-check-blackwell-decode",
        "vllm-check-blackwell-prefill",
    ),
]
