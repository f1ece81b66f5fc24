"""Environment variables that ``torchrun`` sets, read without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from node.config.config import Config
from node.errors import ConfigError

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_")


@dataclass(frozen=True, slots=True)
class Launch:
    """One of several processes that train one policy.

    Rank 0 is the node, the others help its learner. ``local_rank`` also numbers the GPU.
    """

    rank: int
    local_rank: int
    world: int

    @classmethod
    def read(cls) -> Launch | None:
        """Read torchrun's variables: None if there are none, ConfigError if only some."""
        values = [os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
        if values[2] is None:
            return None
        if values[2] == "1":
            forget()
            return None
        try:
            return cls(*(int(each or "") for each in values))
        except ValueError as error:
            raise ConfigError(
                "WORLD_SIZE",
                values[2],
                "The environment has WORLD_SIZE as under torchrun, but not RANK and LOCAL_RANK: "
                "start the node with torchrun, or unset WORLD_SIZE.",
            ) from error

    def check(self, config: Config) -> None:
        """Reject settings that several ranks do not support, with :class:`ConfigError`."""
        advice = "or start the node without torchrun."
        if config.policy.lora_rank:
            remedy = f"Several ranks train all weights: set it to 0, {advice}"
            raise ConfigError("policy.lora_rank", config.policy.lora_rank, remedy)
        if config.learner.optimizer != "adamw":
            remedy = f"Its state cannot be split over ranks: set it to 'adamw', {advice}"
            raise ConfigError("learner.optimizer", config.learner.optimizer, remedy)
        if config.learner.offload:
            remedy = (
                f"Several ranks already split this state over their GPUs: set it to false, {advice}"
            )
            raise ConfigError("learner.offload", True, remedy)
        if config.policy.device not in ("auto", "cpu", "cuda"):
            remedy = f"Each rank uses the GPU with its number: set it to 'auto' or 'cuda', {advice}"
            raise ConfigError("policy.device", config.policy.device, remedy)


def forget() -> None:
    """Remove the variables, so that no child process acts as a rank."""
    for name in [*os.environ]:
        if name in VARIABLES or name.startswith(PREFIXES):
            del os.environ[name]
