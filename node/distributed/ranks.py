"""The processes that train one policy together, and how they talk.

Rank 0 gives orders and every rank carries them out, so all of them meet in the same collective
operations. An order that one rank cannot carry out ends all of them: nothing tells how far the
others came.
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

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = timedelta(days=3650)
"""For an order: rank 0 may generate for as long as it likes. A rank that has ended is told by its
connection and not by time."""

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Order:
    """A method that every rank calls, and its arguments, which are pickled."""

    name: str
    arguments: tuple[Any, ...] = ()


class Ranks:
    """This process among the ranks, from the moment when all of them are there.

    A context manager; leaving it ends the other ranks where this is rank 0.

    Args:
        launch: as torchrun started it; its variables are gone from the environment afterwards.

    Attributes:
        rank, world: this process's number, and how many there are.
        leads: whether this is rank 0.
    """

    def __init__(self, launch: Launch) -> None:
        self.rank, self.world, self.leads = launch.rank, launch.world, launch.rank == 0
        self._local_rank = launch.local_rank
        self._failed = False
        self._store, _, _ = next(rendezvous("env://", launch.rank, launch.world))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=self._store,
            rank=launch.rank,
            world_size=launch.world,
        )
        forget()
        self._orders = dist.new_group(backend="gloo", timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._failed:
            # What is still on its way would be waited for, and the other ranks wait for this one.
            end_at_once(getattr(error, "exit_code", 1))
            return
        if self.leads:
            try:
                self._share(None)
            except RuntimeError as gone:
                if error is None:
                    lost = self._lost("at the end", "another rank has ended")
                    end_at_once(lost.exit_code)
                    raise lost from gone
                log.warning("another rank had ended before this node did: %s", gone)
        dist.destroy_process_group()

    def mesh(self, device: str) -> tuple[torch.device, DeviceMesh]:
        """This rank's device of the kind, and all of them in a row.

        Raises:
            NodeError: there are too few.
        """
        if device == "cuda":
            if self._local_rank >= torch.cuda.device_count():
                raise NodeError(
                    f"rank {self.rank} has no GPU of its own",
                    f"{torch.cuda.device_count()} here",
                    "Give torchrun's --nproc-per-node the number of GPUs.",
                )
            torch.cuda.set_device(self._local_rank)
        mine = torch.device(device, self._local_rank) if device == "cuda" else torch.device(device)
        everyone = dist.group.WORLD
        assert everyone is not None
        return mine, DeviceMesh.from_group(everyone, device)

    @contextmanager
    def carrying_out(self, order: Order) -> Iterator[None]:
        """Do what is ordered, in the block, while the other ranks do; rank 0 tells them to.

        Raises:
            NodeError: one of them cannot, so that none can go on. With the words of the one that
                failed first.
        """
        with self._bound(order.name):
            if self.leads:
                self._share(order)
            yield

    def take(self) -> Order | None:
        """Rank 0's next order; None where it has ended in order.

        Raises:
            NodeError: it has ended otherwise.
        """
        with self._bound("waiting for rank 0"):
            return self._share(None)

    def gather(self, value: T) -> list[T]:
        """Every rank's value, pickled, in their order."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._orders)
        return values

    def sum(self, value: Tensor) -> Tensor:
        """The sum over the ranks, in place; the same number on all of them."""
        dist.all_reduce(value)
        return value

    def spread(self, whole: Tensor, mesh: DeviceMesh) -> DTensor:
        """Rank 0's tensor, some of its rows on each rank; the others tell its shape and dtype."""
        device = mesh.device_type
        full = whole.to(device) if self.leads else torch.empty_like(whole, device=device)
        return distribute_tensor(full, mesh, [Shard(0)])

    def collect(self, tensor: DTensor) -> Tensor | None:
        """The whole of a tensor on rank 0, on its device; None on the others."""
        whole = tensor.full_tensor()
        return whole if self.leads else None

    @contextmanager
    def _bound(self, what: str) -> Iterator[None]:
        try:
            yield
        except NodeError as error:
            self._failed = True
            self._first_failure(f"rank {self.rank}: {error}")
            raise
        except Exception as error:
            self._failed = True
            lost = any(sign in str(error) for sign in _LOST)
            words = "another rank has ended" if lost else str(error) or repr(error)
            log.debug("%s failed", what, exc_info=True)
            raise self._lost(what, words) from error
        except BaseException:
            self._failed = True
            raise

    def _share(self, order: Order | None) -> Order | None:
        shared = [order]
        dist.broadcast_object_list(shared, src=0, group=self._orders)
        return shared[0]

    def _lost(self, what: str, words: str) -> NodeError:
        return NodeError(
            f"the ranks of the learner cannot go on together ({what})",
            self._first_failure(f"rank {self.rank}: {words}"),
            "The last checkpoint is whole, and the same command goes on from it.",
        )

    def _first_failure(self, mine: str) -> str:
        """Words of the rank that failed first: whoever comes later only met its end."""
        try:
            return bytes(self._store.compare_set(_FAILED, "", mine)).decode()
        except RuntimeError as error:
            log.debug("torchrun's store is gone: %s", error)
            return mine


def end_at_once(status: int) -> None:
    """End this process with its Python code, without taking torch apart.

    A thread of gloo that is at work while the interpreter ends aborts the process, and torchrun
    takes that for a failure of the rank.
    """
    atexit.register(_end, status)


def _end(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
