"""Communication between the processes that train one policy together.

Rank 0 sends orders and every rank carries them out, so all of them meet in the same collective
operations. If an order fails on one rank, all end, because the state of the others is unknown.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from node.distributed.torchrun import Launch, forget
from node.errors import NodeError
from node.policy.device import disable_cudnn_attention

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = timedelta(days=3650)
# Timeout of an order: rank 0 may generate for any time. An ended rank closes its connection.

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Order:
    """A method that every rank calls, and its pickled arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


class Ranks:
    """This process among the ranks, once all of them have connected.

    A context manager; leaving it on rank 0 ends the other ranks. Removes torchrun's variables.
    """

    def __init__(self, launch: Launch) -> None:
        self.rank, self.world, self.is_main = launch.rank, launch.world, launch.rank == 0
        self._local_rank = launch.local_rank
        self._failed = False
        self._store, _, _ = next(rendezvous("env://", launch.rank, launch.world))
        kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(kinds, store=self._store, rank=launch.rank, world_size=launch.world)
        forget()
        self._orders = dist.new_group(backend="gloo", timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._failed:
            # A normal exit would wait for pending operations, and other ranks wait for this one.
            exit_immediately(getattr(error, "exit_code", 1))
            return
        if self.is_main:
            try:
                self._share(None)
            except RuntimeError as failure:
                if error is None:
                    node_error = self._lost("at the end", "another rank has ended")
                    exit_immediately(node_error.exit_code)
                    raise node_error from failure
                log.warning("another rank had ended before this node did: %s", failure)
        dist.destroy_process_group()

    def mesh(self, device: str) -> tuple[torch.device, DeviceMesh]:
        """Return this rank's device and the one-dimensional mesh of all ranks."""
        if device == "cuda":
            if self._local_rank >= torch.cuda.device_count():
                text = f"{torch.cuda.device_count()} here"
                remedy = "Give torchrun's --nproc-per-node the number of GPUs."
                raise NodeError(f"rank {self.rank} has no GPU of its own", text, remedy)
            torch.cuda.set_device(self._local_rank)
        local = torch.device(device, self._local_rank) if device == "cuda" else torch.device(device)
        disable_cudnn_attention(local)
        group = dist.group.WORLD
        assert group is not None
        return local, DeviceMesh.from_group(group, device)

    @contextmanager
    def carrying_out(self, order: Order) -> Iterator[None]:
        """Carry out an order on every rank; rank 0 sends it. Raise NodeError once one fails."""
        if self._failed:
            raise self._lost(order.name, "an earlier order failed")
        with self._bound(order.name):
            if self.is_main:
                self._share(order)
            yield

    def take(self) -> Order | None:
        """Return rank 0's next order; None after its normal end, else NodeError."""
        with self._bound("waiting for rank 0"):
            return self._share(None)

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, pickled, in rank order."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._orders)
        return values

    def sum(self, value: Tensor) -> Tensor:
        """Sum over the ranks in place; all of them get the same number."""
        dist.all_reduce(value)
        return value

    def spread(self, whole: Tensor, mesh: DeviceMesh) -> DTensor:
        """Shard rank 0's tensor by rows; others pass one of its shape and dtype."""
        device = mesh.device_type
        source = whole.to(device) if self.is_main else torch.empty_like(whole, device=device)
        return distribute_tensor(source, mesh, [Shard(0)])

    def collect(self, tensor: DTensor) -> Tensor | None:
        """Return the whole tensor on rank 0, on its device; None on the others."""
        full = tensor.full_tensor()
        return full if self.is_main else None

    @contextmanager
    def _bound(self, operation: str) -> Iterator[None]:
        try:
            yield
        except NodeError as error:
            self._failed = True
            self._first_failure(f"rank {self.rank}: {error}")
            raise
        except Exception as error:  # torch raises bare RuntimeErrors; the others wait for this rank
            self._failed = True
            is_lost = any(sign in str(error) for sign in _LOST)
            reason = "another rank has ended" if is_lost else str(error) or repr(error)
            log.debug("%s failed", operation, exc_info=True)
            raise self._lost(operation, reason) from error
        except BaseException:  # Ctrl-C or the end of the process: no error of the ranks to report
            self._failed = True
            raise

    def _share(self, order: Order | None) -> Order | None:
        objects = [order]
        dist.broadcast_object_list(objects, src=0, group=self._orders)
        return objects[0]

    def _lost(self, operation: str, reason: str) -> NodeError:
        return NodeError(
            f"the ranks of the learner cannot continue together ({operation})",
            self._first_failure(f"rank {self.rank}: {reason}"),
            "The last checkpoint is complete; run the same command to resume from it.",
        )

    def _first_failure(self, message: str) -> str:
        try:
            return bytes(self._store.compare_set(_FAILED, "", message)).decode()
        except RuntimeError as error:
            log.debug("torchrun's store is gone: %s", error)
            return message


def exit_immediately(status: int) -> None:
    """Have this process end without torch's teardown, in which a gloo thread may abort it."""
    atexit.register(_end, status)


def _end(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
