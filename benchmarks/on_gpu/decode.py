"""One more token a row in ways that leave the launching of kernels to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from on_gpu.machine import launches, typical
from on_gpu.models import SHAPES, check_room, let_go, prompts, random_policy
from on_gpu.section import Row, Settings

ROWS, MANY_ROWS, STEPS = 8, 64, 16


def run(settings: Settings) -> Iterator[Row]:
    """The model's forward over a cache of fixed length: as it is, recorded, and compiled.

    The engine's own step stands beside them: what a graph could win is the distance between it
    and the others. A recorded graph and a compiled step see as many keys as the cache has room
    for, whatever the row's length.
    """
    import torch

    for size in settings.sizes[:2]:
        check_room(settings, SHAPES[size], 4)
        policy = random_policy(settings, size)
        recorded = ((True, ROWS), (True, MANY_ROWS)) if settings.on_gpu else ()
        for graphs, count in (*recorded, (False, ROWS)):
            how = "recorded" if graphs else "launched"
            step = _engine(policy, settings, count, graphs=graphs)
            yield _row(f"{size} billion, the engine's step {how}, {count} rows", step, settings)
        with torch.inference_mode():
            forward = _forward(policy, settings, policy.model)
            yield _row(f"{size} billion, forward, fixed cache", forward, settings)
            if settings.on_gpu:
                yield from _without_launches(f"{size} billion, the same", forward, policy, settings)
        del policy
        let_go()


def _without_launches(
    what: str, forward: Callable[[], Any], policy: Any, settings: Settings
) -> Iterator[Row]:
    """What may not be possible with this version of the libraries, each by itself."""
    import torch

    def compiled() -> Callable[[], Any]:
        model = torch.compile(policy.model, mode="reduce-overhead", fullgraph=True)
        return _forward(policy, settings, model)

    ways = {"as a CUDA graph": lambda: _recorded(forward), "compiled": compiled}
    for name, way in ways.items():
        try:
            yield _row(f"{what} {name}", way(), settings)
        except Exception as error:  # noqa: BLE001 - told in the row's place
            yield {"what": f"{what} {name}", "failed": str(error).strip().splitlines()[0]}


def _row(what: str, step: Callable[[], Any], settings: Settings) -> Row:
    count = 2 if settings.smoke else STEPS

    def steps() -> None:
        for _ in range(count):
            step()

    step()
    return {
        "what": what,
        "ms_a_step": round(1e3 * typical(steps, settings.device, 3) / count, 3),
        "launches_a_step": launches(step),
    }


def _engine(policy: Any, settings: Settings, count: int, *, graphs: bool) -> Callable[[], Any]:
    """Steps of the engine's decoding, which begins anew where its rows have ended."""
    import torch

    from node.engines.engine import Sampling
    from node.engines.transformers.decoding import Decoders

    asked = prompts(1, _prompt(settings))
    random = torch.Generator(settings.device).manual_seed(0)
    with torch.inference_mode():
        decoding = Decoders(graphs=graphs).open(policy, Sampling(), random)
        decoding.join(asked, [count], [_room(settings)] * count)

    @torch.inference_mode()
    def step() -> None:
        if not decoding.left:
            decoding.join(asked, [count], [_room(settings)] * count)
        decoding.step()

    return step


def _forward(policy: Any, settings: Settings, model: Any) -> Callable[[], Any]:
    """The model's forward of one token a row, in the middle of a cache of fixed length."""
    import torch
    from transformers import StaticCache

    length = _prompt(settings)
    cache: Any = StaticCache(config=policy.model.config, max_cache_len=length + _room(settings))
    ids = torch.tensor(prompts(ROWS, length), device=settings.device)
    policy.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = ids[:, :1].clone()
    position = torch.full((ROWS, 1), length, device=settings.device)

    def step() -> Any:
        return model(
            input_ids=token, position_ids=position, past_key_values=cache, use_cache=True
        ).logits

    return step


def _recorded(step: Callable[[], Any]) -> Callable[[], Any]:
    """The same as a CUDA graph, behind three runs on a stream of their own as torch asks for."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _prompt(settings: Settings) -> int:
    return 16 if settings.smoke else 256


def _room(settings: Settings) -> int:
    return 32 if settings.smoke else 1_024
