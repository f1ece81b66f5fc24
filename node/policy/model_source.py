"""Sources of a model: the package, a folder, or the hub."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from node.errors import ConfigError
from node.policy.model_files import (
    ADAPTER,
    CONFIG,
    PolicyError,
    check_kind,
    check_weights,
    gguf,
    in_a_line,
    is_gguf,
    refused,
)
from swarm.common.util import Say, duration

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 3.0  # timeout of the hub, unless ``PATIENCE_VARIABLE`` is set
PATIENCE_VARIABLE = "HF_HUB_ETAG_TIMEOUT"
TEXTS = (".json", ".model", ".txt", ".jinja")
WEIGHTS = (("model", ".safetensors"), ("", ".safetensors"), ("pytorch_model", ".bin"))
"""Prefixes and suffixes of weight files; the first pair that matches any file is loaded."""
REPORT_SECONDS = 1.0


def cached(model: str) -> Path | None:
    """Return the hub cache's folder of this model, which may be incomplete."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(model, "config.json")
    return Path(path).parent if isinstance(path, str) else None


def offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def patience() -> float:
    """Return the hub's timeout in seconds; raise ConfigError if it is set wrongly."""
    value = os.environ.get(PATIENCE_VARIABLE)
    if value is None:
        return PATIENCE_SECONDS
    if not value.isdecimal() or int(value) == 0:
        raise ConfigError(PATIENCE_VARIABLE, repr(value), "Give whole seconds, such as 30.")
    return float(value)


def fetch(model: str, names: Sequence[str], tell: Say) -> Path:
    """Return the folder of a causal language model's files; download what is missing.

    ``names`` are all the model's files. ``tell`` receives size and remaining time, at most once per
    second and per percent. Raises OSError: the hub stopped responding, or there is no space.
    """
    from huggingface_hub import snapshot_download

    patterns = wanted(names)
    plan = snapshot_download(model, allow_patterns=patterns, dry_run=True)
    missing = sum(file.file_size or 0 for file in plan if file.will_download)
    bar = _reporting_bar(model, missing, tell) if missing else None
    return Path(snapshot_download(model, allow_patterns=patterns, tqdm_class=bar))


def wanted(names: Sequence[str]) -> list[str]:
    """Select the files that a model is loaded from: no copies in other formats."""
    top = [name for name in names if "/" not in name]
    files = ([n for n in top if n.startswith(begin) and n.endswith(end)] for begin, end in WEIGHTS)
    return [*(name for name in top if name.endswith(TEXTS)), *next(filter(None, files), [])]


def _reporting_bar(model: str, total: int, tell: Say) -> type[Any]:
    """Create a tqdm class that reports progress; its own total omits pending files."""
    from tqdm import tqdm

    start = time.monotonic()
    reported_percent, reported_at = -1, start - REPORT_SECONDS

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **{**settings, "file": io.StringIO()})

        def display(self, *_: Any, **__: Any) -> bool:
            nonlocal reported_percent, reported_at
            now, fetched = time.monotonic(), min(self.n, total)
            percent = 100 * fetched // total
            if self.unit != "B" or fetched <= 0 or percent <= reported_percent:
                return True
            if now >= reported_at + REPORT_SECONDS:
                reported_percent, reported_at = percent, now
                time_left = duration((now - start) * (total - fetched) / fetched)
                size = f"{fetched / 1e6:.0f} of {total / 1e6:.0f} MB"
                tell(f"fetching {model}: {size}, about {time_left} left")
            return True

    return Bar


SHIPPED = ("tiny", "tiny-wide", "tiny-working", "tiny-games")
REMEDY = "Name a folder made by save_pretrained, a hub id of a causal language model, or 'tiny'."

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


def shipped_folder(model: str) -> Path:
    """Return the folder of a model in the package; raise PolicyError if it is missing."""
    folder = Path(__file__).parents[1] / "models" / model
    if not folder.is_dir():
        raise PolicyError(
            "policy.model",
            f"{model!r}, but {folder} does not exist",
            "Install swarm-node again, or make the model with examples/tiny_model.",
        )
    return folder


def no_model(model: str, why: str | Exception) -> PolicyError:
    return refused(model, why if isinstance(why, str) else in_a_line(why), REMEDY)


def no_folder(model: str) -> str:
    """Return why a name is not a model folder; empty if it is one, or a hub id."""
    path = Path(model).expanduser()
    if path.is_dir():
        reason = "a LoRA adapter alone, of another model" if (path / ADAPTER).is_file() else ""
        return "" if (path / CONFIG).is_file() else reason or f"there is no {CONFIG} in this folder"
    return "" if _HUB_ID.fullmatch(model) and not model.startswith(".") else "no such folder"


def unreachable(model: str, why: str) -> PolicyError:
    remedy = (
        "Check this machine's network and HF_ENDPOINT, name a folder with the model, or set a "
        f"longer timeout with {PATIENCE_VARIABLE}."
    )
    return refused(model, f"no such folder here, and {why}", remedy)


def check_model(model: str) -> None:
    """Check that a model exists: shipped, a folder, in the hub's cache, or at the hub.

    Also checks, without torch, the configuration, and file sizes of a user's folder or offline.
    Raises PolicyError: there is none, the hub does not respond, or it cannot be trained;
    ConfigError: see :func:`patience`.
    """
    if _local(model):
        return
    if folder := cached(model):
        check_kind(folder, model)
        if offline():
            check_weights(folder, model)
    else:
        _at_hub(model)


def located(model: str, tell: Say) -> Path:
    """Return the folder to load a model from, after downloading what is missing.

    Warns if the hub is unreachable but part is cached. Raises as :func:`check_model`.
    """
    if folder := _local(model):
        return folder
    fetched = _from_hub(model, tell)
    check_kind(fetched, model)
    check_weights(fetched, model)
    return fetched


def _local(model: str) -> Path | None:
    """Return the folder of a shipped model, or a user's once checked; None for a hub id."""
    if model in SHIPPED:
        return shipped_folder(model)
    folder, reason = Path(model).expanduser(), no_folder(model)
    if is_gguf(folder) or (reason and any(folder.glob("*.gguf"))):
        raise gguf(model)
    if reason:
        raise no_model(model, reason)
    if not folder.is_dir():
        return None
    check_kind(folder, model)
    check_weights(folder, model)
    return folder


def _from_hub(model: str, tell: Say) -> Path:
    folder = cached(model)
    if folder and offline():
        return folder
    try:
        return fetch(model, _at_hub(model), tell)
    except PolicyError as error:
        if folder is None:
            raise
        log.warning("%s The node uses the cached files.", error)
        return folder


def config_folder(model: str) -> Path:
    """Return a folder with at least ``config.json``; raises as :func:`check_model`."""
    if model in SHIPPED:
        return shipped_folder(model)
    if reason := no_folder(model):
        raise no_model(model, reason)
    folder = Path(model).expanduser()
    source = folder if folder.is_dir() else cached(model) or _config_at_hub(model)
    check_kind(source, model)
    return source


def _config_at_hub(model: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    _at_hub(model)
    try:
        path = hf_hub_download(model, "config.json", etag_timeout=patience())
    except EntryNotFoundError as error:
        raise no_model(model, "it has no config.json on the hub") from error
    except HfHubHTTPError as error:
        raise no_model(model, f"the hub refuses access: {in_a_line(error)}") from error
    except OSError as error:
        raise unreachable(model, f"the hub is unreachable: {in_a_line(error)}") from error
    return Path(path).parent


def _at_hub(model: str) -> tuple[str, ...]:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if "/" not in model and (similar := get_close_matches(model.lower(), SHIPPED, 1, 0.8)):
        raise refused(model, "no such folder here", f"Did you mean {similar[0]!r}?")
    if offline():
        raise no_model(model, "it is not in the cache, and HF_HUB_OFFLINE is set")
    seconds, answers = patience(), list[Any]()
    # On a thread, because a name server that does not answer has no timeout.
    thread = threading.Thread(target=_ask, args=(HfApi(), model, seconds, answers), daemon=True)
    thread.start()
    thread.join(seconds)
    answer = answers[0] if answers else TimeoutError()
    if isinstance(answer, GatedRepoError):
        reason = "it is gated: only users who accepted its terms may download it"
        remedy = "Accept them on the model's page, log in with: hf auth login, and start again."
        raise refused(model, reason, remedy) from answer
    if isinstance(answer, RepositoryNotFoundError):
        raise no_model(model, "no such folder here, and no such model on the hub") from answer
    if isinstance(answer, HfHubHTTPError):
        reason = f"no such folder here, and the hub refuses access: {in_a_line(answer)}"
        raise no_model(model, reason) from answer
    if isinstance(answer, Exception):
        message = f"{constants.ENDPOINT} did not answer within {seconds:.0f} s"
        reason = message if "Timeout" in type(answer).__name__ else in_a_line(answer)
        raise unreachable(model, f"the hub is unreachable: {reason}") from answer
    return tuple(file.rfilename for file in answer.siblings or ())


def _ask(hub: Any, model: str, seconds: float, answers: list[Any]) -> None:
    """Append the hub's description of a model, or the exception."""
    try:
        info = hub.model_info(model, timeout=seconds)
        if info.gated:
            hub.auth_check(model)
        answers.append(info)
    except Exception as error:  # noqa: BLE001 - raised on the thread that asks
        answers.append(error)
