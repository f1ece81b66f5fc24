"""Backend on vLLM 0.32, which reads environment variables at import."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from pydantic import ValidationError
from transformers import AutoConfig
from vllm import EngineArgs, LLMEngine, SamplingParams, envs
from vllm.sampling_params import RequestOutputKind

from node.engines.engine import BackendSettings, Request, RequestOutput
from node.engines.weight_snapshot import opened
from node.errors import NodeError
from protocol.rollout import Finish

REPORT_EVERY = 32  # steps between reports; a process that dies loses unreported tokens
BLOCK_TOKENS = 128
DISCARD = 2  # vLLM's sleep level that does not copy weights to main memory; the snapshot has them
COMPILERS = "g++", "c++", "clang++"  # of which a CPU needs one to compile the model
MAX_CPU_CACHE = 1 << 30  # bytes; vLLM fills a CPU's cache at start


class VllmBackend:
    """A backend on a vLLM engine that steps inside this process.

    Log-probs are those of the distribution that tokens are sampled from; a greedy request's are at
    temperature 1. vLLM starts with random weights and loads the snapshot. An update drops the
    prefix cache and recomputes running requests under the new weights. With the option ``sleeps``,
    :meth:`sleep` frees weights and KV cache until the next request.
    """

    def __init__(self, engine: Any, settings: BackendSettings) -> None:
        self._engine = engine
        self._folder = settings.folder
        self._stop_ids = list(settings.stop_ids)
        self._sleeps = bool(settings.options["sleeps"])
        self._asleep = False
        self._steps = 0
        self._requests: dict[int, str] = {}
        self._reported: dict[int, int] = {}
        self._version = self._load()

    @classmethod
    def open(cls, settings: BackendSettings) -> VllmBackend:
        """Start vLLM with the snapshot's model.

        Raises:
            SnapshotError: its weights cannot be used.
            NodeError: vLLM does not support the model.
        """
        # The model's path is part of the key of vLLM's compile cache. A path of this process
        # alone would never hit the cache.
        os.chdir(settings.folder)
        try:
            engine = _start(_arguments(settings))
        except ValidationError as error:
            # The message continues with a list of all supported architectures.
            reason = error.errors()[0]["msg"].split(" Supported architectures:")[0]
            raise NodeError(
                "vLLM does not support this policy",
                reason.removeprefix("Value error, "),
                "Choose another policy.model, or set engine.backend = 'transformers'.",
            ) from error
        return cls(engine, settings)

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def submit(self, requests: Sequence[Request]) -> None:
        if self._asleep:
            self._wake()
        for request in requests:
            self._check_room(request)
            self._reported[request.number] = 0
            self._requests[request.number] = self._engine.add_request(
                str(request.number),
                {"prompt_token_ids": list(request.ids)},
                self._sampling(request),
            )

    def _check_room(self, request: Request) -> None:
        """Raise NodeError if a prompt and one token of its completion exceed vLLM's memory."""
        limit = self._engine.model_config.max_model_len
        if len(request.ids) >= limit:
            raise NodeError(
                "a prompt is longer than vLLM has memory for",
                f"{len(request.ids)} tokens, at most {limit - 1}",
                "Increase engine.gpu_memory_utilization, or use shorter tasks.",
            )

    def step(self) -> list[RequestOutput]:
        outputs = [
            self._finish(int(output.request_id), output.outputs[0])
            for output in self._engine.step()
            if output.finished
        ]
        self._steps += 1
        return outputs + (self._report() if self._steps % REPORT_EVERY == 0 else [])

    def update(self) -> list[RequestOutput]:
        if self._asleep:
            return []
        outputs = self._report()
        self._version = self._load()
        return outputs

    def pause(self) -> list[RequestOutput]:
        outputs = self._report()
        self._engine.abort_request(list(self._requests.values()), internal=True)
        self._requests.clear()
        self._reported.clear()
        return outputs

    def abort(self, lasting: Sequence[int]) -> None:
        """Do nothing: vLLM finds cached tokens by prefix and evicts them itself."""

    def sleep(self) -> None:
        if self._sleeps and not self._asleep:
            self._engine.sleep(level=DISCARD)
            self._asleep = True

    def _wake(self) -> None:
        # Weights first: loading them temporarily takes extra memory.
        self._engine.wake_up(["weights"])
        self._version = self._load()
        self._engine.wake_up(["kv_cache"])
        self._asleep = False

    def _load(self) -> int:
        (version, *_) = self._engine.collective_rpc("load_snapshot", args=(self._folder,))
        self._engine.reset_prefix_cache(reset_running_requests=True)
        return int(version)

    def _sampling(self, request: Request) -> Any:
        return SamplingParams(
            temperature=0.0 if request.greedy else request.temperature,
            max_tokens=request.room,
            stop_token_ids=self._stop_ids,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _finish(self, number: int, completion: Any) -> RequestOutput:
        del self._requests[number]
        finish = Finish.STOP if completion.finish_reason == "stop" else Finish.LENGTH
        return self._since(number, completion.token_ids, completion.logprobs, finish)

    def _report(self) -> list[RequestOutput]:
        """Read unfinished outputs from vLLM's state; emitting them would cost every step."""
        states = self._engine.output_processor.request_states
        outputs = []
        for number, request in self._requests.items():
            state = states[request]
            ids, logprobs = state.detokenizer.output_token_ids, state.logprobs_processor.logprobs
            outputs.append(self._since(number, ids, logprobs, None))
        return [output for output in outputs if output.ids]

    def _since(
        self, number: int, ids: Sequence[int], logprobs: Any, finish: Finish | None
    ) -> RequestOutput:
        start = self._reported.pop(number)
        if finish is None:
            self._reported[number] = len(ids)
        # One entry per token: ``logprobs=0`` requests only that of the sampled token.
        return RequestOutput(
            number, list(ids[start:]), logprobs.logprobs[start:], self._version, finish
        )


class SnapshotLoader:
    """A vLLM worker extension that loads a snapshot's weights."""

    def load_snapshot(self, folder: str) -> int:
        worker: Any = self
        with opened(Path(folder)) as (version, weights):
            worker.reload_weights(weights_iterator=weights)
        # On a CPU vLLM multiplies with packed copies, and does not repack layers that keep their
        # original weights, such as a tied head.
        for module in worker.get_model().modules():
            if hasattr(module, "cpu_linear") and module.weight.numel():
                module.quant_method.process_weights_after_loading(module)
        return version


def _arguments(settings: BackendSettings) -> EngineArgs:
    return EngineArgs(
        model=os.curdir,
        trust_remote_code=False,
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=settings.dtype,
        seed=settings.seed,
        max_model_len=-1,  # the longest context that fits its memory
        max_num_seqs=settings.max_rows,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        # The policy version of a token must be known when the token is sampled.
        async_scheduling=False,
        worker_extension_cls=f"{__name__}.{SnapshotLoader.__name__}",
        tensor_parallel_size=settings.options["tensor_parallel_size"],
        gpu_memory_utilization=settings.options["gpu_memory_utilization"],
        kv_cache_memory_bytes=_cache_bytes(settings),
        enable_sleep_mode=settings.options["sleeps"] and settings.device != "cpu",
        enforce_eager=settings.device == "cpu" and not any(map(shutil.which, COMPILERS)),
        disable_log_stats=True,
    )


def _start(arguments: EngineArgs) -> LLMEngine:
    """Start vLLM; on a new model the first engine compiles for all others."""
    digest = hashlib.sha256(Path(arguments.model, "config.json").read_bytes()).hexdigest()[:16]
    marker = Path(envs.VLLM_CACHE_ROOT) / f"swarm-node-{digest}"
    if marker.exists():
        return LLMEngine.from_engine_args(arguments)
    marker.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{marker}.lock"):
        engine = LLMEngine.from_engine_args(arguments)
    marker.touch()
    return engine


def _cache_bytes(settings: BackendSettings) -> int | None:
    """Size a CPU's KV cache for all rows at full length; None leaves it to vLLM."""
    if settings.device != "cpu" or os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        return None
    config: Any = AutoConfig.from_pretrained(
        settings.folder, trust_remote_code=False
    ).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    tokens = settings.context_length + BLOCK_TOKENS
    values: int = 2 * config.num_hidden_layers * heads * size * tokens
    width = torch.finfo(getattr(torch, settings.dtype)).bits // 8
    return min(settings.max_rows * values * width, MAX_CPU_CACHE)
