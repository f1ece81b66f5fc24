"""The census of a run folder, kept in one file so that a restart goes on with it."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from node.storage.atomic_files import write_atomic, write_error
from swarm.census.census import CensusState
from swarm.common.counters import Counters

log = logging.getLogger(__name__)

STATE = TypeAdapter(CensusState)
ASIDE = ".aside"


def read_census(path: Path, swarm: str, now: float, counters: Counters) -> CensusState:
    """What was counted of a swarm until now; a new beginning where nothing was.

    What is damaged, or of another swarm, is set aside under another name, said in the log and
    counted (``census_set_aside``).

    Args:
        swarm: id in hex.
        now: unix time, seconds.

    Raises:
        NodeError: the file cannot be read or set aside.
    """
    try:
        state = STATE.validate_json(path.read_bytes())
        if state.swarm == swarm:
            return state
        why = f"it is of swarm {state.swarm[:16]}"
    except FileNotFoundError:
        return CensusState(swarm, now)
    except ValidationError as error:
        why = f"it is damaged: {error.errors()[0]['msg']}"
    except OSError as error:
        raise write_error(path, error) from error
    try:
        path.replace(path.with_name(path.name + ASIDE))
    except OSError as error:
        raise write_error(path, error) from error
    counters.add("census_set_aside")
    log.warning("%s is set aside and begun anew: %s", path, why)
    return CensusState(swarm, now)


def write_census(path: Path, state: CensusState) -> None:
    """Keep what was counted.

    Raises:
        NodeError: it cannot be written; what was there before still is.
    """
    write_atomic(path, STATE.dump_json(state), durable=False)
