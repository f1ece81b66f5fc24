"""A back-end over vLLM 0.32.

It reads environment variables while it is imported: :mod:`node.engines.process.worker` sets them
before.
"""

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

from node.engines.backend import BackendSettings, Job, Written
from node.engines.weight_snapshot import opened
from node.errors import NodeError
from protocol.rollout import Finish

REPORT_EVERY = 32
"""Steps between two reports of what goes on; more of it would be lost with the process."""
BLOCK_TOKENS = 128
DISCARD = 2
"""vLLM's level of sleep that copies no weights into main memory: the snapshot is there already."""
MAX_CPU_CACHE = 1 << 30


class VllmBackend:
    """Every job is a request. Log-probs are those of the distribution that is sampled from; only
    a greedy job's are at temperature 1, whatever its own.

    vLLM begins with random weights and gets its first ones as it gets all later ones. At an update
    what it computed under the earlier weights is dropped: requests on their way are kept and read
    anew, and no later one meets an old prefix.

    Where it ``sleeps`` it holds neither weights nor cache until the next request, and takes the
    weights from the snapshot then.

    Args:
        engine: one that steps inside this process.
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
        """Start vLLM on the policy that the snapshot describes.

        Raises:
            SnapshotError: its weights cannot be used.
            NodeError: vLLM does not know such a model.
        """
        # What vLLM compiles it keeps by the model's path among others: a path that is this
        # process's own would never be met again.
        os.chdir(settings.folder)
        try:
            engine = _start(_arguments(settings))
        except ValidationError as error:
            # The message goes on with the names of all that it does know.
            reason = error.errors()[0]["msg"].split(" Supported architectures:")[0]
            raise NodeError(
                "vLLM does not take this policy",
                reason.removeprefix("Value error, "),
                "Choose another policy.model, or set engine.kind = 'transformers'.",
            ) from error
        return cls(engine, settings)

    @property
    def busy(self) -> bool:
        """See :class:`node.engines.backend.Backend`."""
        return bool(self._requests)

    def submit(self, jobs: Sequence[Job]) -> None:
        """See :class:`node.engines.backend.Backend`."""
        if self._asleep:
            self._wake()
        for job in jobs:
            self._reported[job.number] = 0
            self._requests[job.number] = self._engine.add_request(
                str(job.number), {"prompt_token_ids": list(job.ids)}, self._sampling(job)
            )

    def step(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        finished = [
            self._finish(int(output.request_id), output.outputs[0])
            for output in self._engine.step()
            if output.finished
        ]
        self._steps += 1
        return finished + (self._report() if self._steps % REPORT_EVERY == 0 else [])

    def update(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        if self._asleep:
            return []
        written = self._report()
        self._version = self._load()
        return written

    def halt(self) -> list[Written]:
        """See :class:`node.engines.backend.Backend`."""
        written = self._report()
        self._engine.abort_request(list(self._requests.values()), internal=True)
        self._requests.clear()
        self._reported.clear()
        return written

    def forget(self, lasting: Sequence[int]) -> None:
        """vLLM finds what it has read by its prefix, and makes room by itself."""

    def rest(self) -> None:
        """See :class:`node.engines.backend.Backend`."""
        if self._sleeps and not self._asleep:
            self._engine.sleep(level=DISCARD)
            self._asleep = True

    def _wake(self) -> None:
        # The cache comes after the weights: loading them takes room of its own for a while.
        self._engine.wake_up(["weights"])
        self._version = self._load()
        self._engine.wake_up(["kv_cache"])
        self._asleep = False

    def _load(self) -> int:
        (version, *_) = self._engine.collective_rpc("load_snapshot", args=(self._folder,))
        self._engine.reset_prefix_cache(reset_running_requests=True)
        return int(version)

    def _sampling(self, job: Job) -> Any:
        return SamplingParams(
            temperature=0.0 if job.greedy else job.temperature,
            max_tokens=job.room,
            stop_token_ids=self._stop_ids,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _finish(self, number: int, completion: Any) -> Written:
        del self._requests[number]
        finish = Finish.STOP if completion.finish_reason == "stop" else Finish.LENGTH
        return self._since(number, completion.token_ids, completion.logprobs, finish)

    def _report(self) -> list[Written]:
        """What goes on, read where vLLM gathers it: outputs made for it would cost every step."""
        states = self._engine.output_processor.request_states
        written = []
        for number, request in self._requests.items():
            state = states[request]
            ids, logprobs = state.detokenizer.output_token_ids, state.logprobs_processor.logprobs
            written.append(self._since(number, ids, logprobs, None))
        return [each for each in written if each.ids]

    def _since(
        self, number: int, ids: Sequence[int], logprobs: Any, finish: Finish | None
    ) -> Written:
        start = self._reported.pop(number)
        if finish is None:
            self._reported[number] = len(ids)
        # One entry a token: no others than the sampled one were asked for.
        return Written(number, list(ids[start:]), logprobs.logprobs[start:], self._version, finish)


class SnapshotLoader:
    """What every worker of vLLM can do besides its own work."""

    def load_snapshot(self, folder: str) -> int:
        """Load the weights in ``folder``; returns their version.

        On a CPU vLLM multiplies with packed copies, and forgets to pack those anew whose weights
        are still there, as a tied head's are.
        """
        worker: Any = self
        with opened(Path(folder)) as (version, weights):
            worker.reload_weights(weights_iterator=weights)
        for module in worker.get_model().modules():
            if hasattr(module, "cpu_linear") and module.weight.numel():
                module.quant_method.process_weights_after_loading(module)
        return version


def _arguments(settings: BackendSettings) -> EngineArgs:
    return EngineArgs(
        model=os.curdir,
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=settings.dtype,
        seed=settings.seed,
        max_model_len=settings.context_length,
        max_num_seqs=settings.max_rows,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        # The version that a token is drawn under must be known when it is drawn.
        async_scheduling=False,
        worker_extension_cls=f"{__name__}.{SnapshotLoader.__name__}",
        tensor_parallel_size=settings.options["tensor_parallel"],
        gpu_memory_utilization=settings.options["gpu_memory"],
        kv_cache_memory_bytes=_cache_bytes(settings),
        enable_sleep_mode=settings.options["sleeps"] and settings.device != "cpu",
        enforce_eager=settings.device == "cpu" and not _compiles(),
        disable_log_stats=True,
    )


def _start(arguments: EngineArgs) -> LLMEngine:
    """Where several engines start on a new model, the first one compiles it for all of them."""
    shape = hashlib.sha256(Path(arguments.model, "config.json").read_bytes()).hexdigest()[:16]
    known = Path(envs.VLLM_CACHE_ROOT) / f"swarm-node-{shape}"
    if known.exists():
        return LLMEngine.from_engine_args(arguments)
    known.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{known}.lock"):
        engine = LLMEngine.from_engine_args(arguments)
    known.touch()
    return engine


def _cache_bytes(settings: BackendSettings) -> int | None:
    """On a CPU, enough for every row at its full length within bounds: it is filled at the start.

    None leaves it to ``gpu_memory``, or to the environment.
    """
    if settings.device != "cpu" or os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        return None
    shape: Any = AutoConfig.from_pretrained(settings.folder).get_text_config()
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    values: int = (
        2 * shape.num_hidden_layers * heads * size * (settings.context_length + BLOCK_TOKENS)
    )
    width = torch.finfo(getattr(torch, settings.dtype)).bits // 8
    return min(settings.max_rows * values * width, MAX_CPU_CACHE)


def _compiles() -> bool:
    """Whether there is a compiler for the code that torch writes."""
    return any(shutil.which(name) for name in ("g++", "c++", "clang++"))
