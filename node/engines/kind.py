"""What a kind of engine is, and what it can do, as the rest of a node asks it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from node.config.kind import Kind
from node.config.sections import EngineSection

if TYPE_CHECKING:
    from node.engines.backend import Backend, BackendSettings
    from node.engines.engine import RolloutEngine
    from node.policy.policy import Policy


class EngineKind(Kind, ABC):
    """One kind of rollout engine; each has a file in ``kinds/``, which imports nothing heavy.

    Attributes:
        Options: keys of ``engine.kind_options``.
        beside: it writes while the policy learns, where the schedule is left to it.
        several_gpus: a model may be split over GPUs, and several engines stand beside each other.
        as_checkpoint: its process reads weights as a folder that ``transformers`` loads.
        start_seconds: that its process takes to start, about.
    """

    beside: ClassVar[bool] = False
    several_gpus: ClassVar[bool] = False
    as_checkpoint: ClassVar[bool] = True
    start_seconds: ClassVar[float] = 3.0

    def check(self) -> None:
        """Look for what it needs on this machine.

        Raises:
            ConfigError: a library is missing, or another version of it is here.
        """

    def check_policy(self, policy: Policy) -> None:
        """Look whether it writes what the learner reads, before anything is trained on.

        Raises:
            PolicyError: it does not.
        """
        del policy

    def embedded(self, policy: Policy, seed: int) -> RolloutEngine | None:
        """An engine in this process; None where it always has one of its own."""
        del policy, seed
        return None

    def settings(self, engine: EngineSection) -> dict[str, Any]:
        """What its back-end is told of the configuration, as msgpack carries it."""
        del engine
        return self.options.model_dump() if self.options else {}

    @abstractmethod
    def backend(self, settings: BackendSettings) -> Backend:
        """Its back-end, opened inside the engine's process."""
