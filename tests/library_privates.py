"""Private parts of libraries; no other test file may use any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten
from transformers import PreTrainedModel


def attend_by(model: PreTrainedModel, kind: str) -> None:
    model.config._attn_implementation = kind


def flattened(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of nested containers in order, and the nesting."""
    return tree_flatten(tree)


@contextmanager
def without_numbers() -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function that makes a tensor without data; reading its values raises."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode.from_tensor


class counted_kernels(TorchDispatchMode):  # noqa: N801 - a context
    """Counts operators that run a kernel, which is all except views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = (
            {x.untyped_storage().data_ptr() for x in tree_flatten(tree)[0] if isinstance(x, Tensor)}
            for tree in (args, out)
        )
        self.count += func._schema.is_mutable or not made <= given
        return out


class counted_uploads(TorchDispatchMode):  # noqa: N801 - a context
    """Counts tensors made from Python numbers; on a GPU each is a blocking copy."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.lift_fresh.default
        return func(*args, **(kwargs or {}))


__all__ = ["DataDependentOutputException"]


class WebDaemon:
    """A p2p daemon that listens on WebTransport alone, which hivemind cannot parse."""

    def __init__(self, started: Any) -> None:
        self._started = started

    @classmethod
    async def start(cls, key: Path) -> WebDaemon:
        from hivemind.p2p import P2P

        class Started(P2P):
            @staticmethod
            def _make_process_args(*args: Any, **options: Any) -> list[str]:
                made = P2P._make_process_args(*args, **options)
                return [each.replace("/tcp/0", "/udp/0/quic-v1/webtransport") for each in made]

            async def _ping_daemon(self) -> None:
                """Skip the address query, because hivemind cannot parse the answer."""

        options = {"check_if_identity_free": False, "dht_mode": "client"}
        host = ["/ip4/127.0.0.1/tcp/0"]
        return cls(await Started.create(host_maddrs=host, identity_path=str(key), **options))

    async def dial(self, full_address: str) -> None:
        from hivemind.p2p import PeerID
        from hivemind.utils.multiaddr import Multiaddr

        address, _, peer = full_address.rpartition("/p2p/")
        await self._started._client.connect(PeerID.from_base58(peer), [Multiaddr(address)])

    async def hang_up(self, peer: str) -> None:
        from hivemind.p2p import PeerID

        await self._started._client.disconnect(PeerID.from_base58(peer))

    async def stop(self) -> None:
        await self._started.shutdown()


async def add_handler(node: Any, name: str, handler: Any) -> None:
    await node.p2p._client.add_unary_handler(name, handler)


def still_reads(node: Any) -> bool:
    return not node.control._read_task.done()


def cancel_with(node: Any, cancel: Any) -> Any:
    """Replace the function that cancels a daemon call; return the original."""
    control = node.control
    before, control._cancel_unary_call = control._cancel_unary_call, cancel
    return before
