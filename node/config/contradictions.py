"""Values that are right alone and wrong together, or that only this machine can judge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from node.config.addresses import check_addresses, host_and_port
from node.config.kinds import ENGINES, REGISTRIES
from node.errors import ConfigError
from protocol.errors import ProtocolError
from protocol.profile import MAX_LINE, MAX_NAME, check_told

if TYPE_CHECKING:
    from node.config.config import Config


def refuse(config: Config) -> None:
    """Look at a whole configuration.

    Raises:
        ConfigError: a key contradicts another one, or what it names is not here.
    """
    _check_kinds(config)
    _check_groups(config)
    _check_schedule(config)
    _check_gpus(config)
    _check_network(config)
    _check_profile(config)
    if config.monitor.public:
        host_and_port("monitor.public", config.monitor.public)
    if isinstance(config.monitor.dashboard, str):
        host_and_port("monitor.dashboard", config.monitor.dashboard)


def _check_groups(config: Config) -> None:
    mixture = config.mixture
    if mixture.local + mixture.external == 0:
        raise ConfigError(
            "mixture.local",
            0,
            "With mixture.external = 0 as well an update has no groups: raise either.",
        )
    if mixture.pool_groups < mixture.external:
        raise ConfigError(
            "mixture.pool_groups",
            mixture.pool_groups,
            f"Hold at least mixture.external = {mixture.external} groups.",
        )
    engine = config.engine
    if engine.max_turn_tokens > engine.max_new_tokens:
        raise ConfigError(
            "engine.max_turn_tokens",
            engine.max_turn_tokens,
            f"All turns together have engine.max_new_tokens = {engine.max_new_tokens}: raise that "
            "or lower this.",
        )
    if config.tasks.weights and not any(config.tasks.weights.values()):
        raise ConfigError(
            "tasks.weights", config.tasks.weights, "Give at least one family a positive weight."
        )


def _check_schedule(config: Config) -> None:
    schedule = config.schedule
    if schedule.over_provision > schedule.max_staleness:
        raise ConfigError(
            "schedule.over_provision",
            schedule.over_provision,
            "What an update leaves must be young enough for the next: raise "
            f"schedule.max_staleness to {math.ceil(schedule.over_provision)} or lower it.",
        )
    if schedule.over_provision and not config.overlaps:
        raise ConfigError(
            "schedule.over_provision",
            schedule.over_provision,
            "Groups are begun ahead of an update under schedule.mode = 'overlap' alone: set "
            "that, or leave it at 0.",
        )


def _check_kinds(config: Config) -> None:
    for registry in REGISTRIES:
        section, name = registry.key.split(".")
        chosen = getattr(getattr(config, section), name)
        options = getattr(getattr(config, section), f"{name}_options")
        if isinstance(chosen, str):
            chosen, options = (chosen,), {chosen: options}
        for kind in chosen:
            registry.check(kind)
            if options.get(kind) or kind not in registry.own:  # what is not ours may be broken
                registry.options(kind, options.get(kind, {}))
        if idle := sorted(options.keys() - set(chosen)):
            remedy = f"It is not in {registry.key}: name it there, or take the table out."
            raise ConfigError(f"{registry.key}_options", idle[0], remedy)


def _check_gpus(config: Config) -> None:
    for key in ("tensor_parallel", "data_parallel"):
        width = getattr(config.engine, key)
        if width > 1 and not ENGINES.load(config.engine.kind).several_gpus:
            able = [name for name in ENGINES.own if ENGINES.load(name).several_gpus]
            raise ConfigError(
                f"engine.{key}",
                width,
                f"Only engine.kind = {' or '.join(map(repr, able))} takes several GPUs: set "
                "that, or leave it at 1.",
            )


def _check_network(config: Config) -> None:
    network = config.network
    for key in ("listen", "announce", "peers"):
        check_addresses(f"network.{key}", getattr(network, key))


def _check_profile(config: Config) -> None:
    for key, most in (("name", MAX_NAME), ("line", MAX_LINE)):
        value = getattr(config.profile, key)
        try:
            check_told(value, key, most)
        except ProtocolError as error:
            _, _, why = str(error).partition(": ")
            raise ConfigError(
                f"profile.{key}",
                value,
                f"Peers would refuse it ({why}): write up to {most} characters that are seen, in "
                "one line, with single blanks between them.",
            ) from error
