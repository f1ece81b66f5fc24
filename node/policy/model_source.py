"""Where a model comes from: shipped, a folder, or the hub."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node.errors import ConfigError
from node.policy.model_files import PolicyError, check_kind, check_weights, gguf, is_gguf
from swarm.common.util import duration

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 3.0
"""In which the hub has to answer, unless this library's own variable says otherwise."""
PATIENCE_VARIABLE = "HF_HUB_ETAG_TIMEOUT"
TEXTS = (".json", ".model", ".txt", ".jinja")
WEIGHTS = (("model", ".safetensors"), ("", ".safetensors"), ("pytorch_model", ".bin"))
"""Beginnings and ends of files that hold weights; the first that some have is what is read."""
TELL_SECONDS = 1.0
MEGABYTE = 1e6


class NotAtHubError(Exception):
    """The hub has no such model, or refuses to say so; the message says which."""


class GatedError(Exception):
    """The hub gives the model only to those who have accepted its terms."""


class HubSilentError(Exception):
    """The hub could not be reached or did not answer in time; the message says which."""


def cached(model: str) -> Path | None:
    """The folder in which the hub's cache has this model, or the beginning of it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def offline() -> bool:
    """Whether the hub is not to be asked."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def patience() -> float:
    """Seconds in which the hub has to answer.

    Raises:
        ConfigError: the variable that sets them holds no number above 0.
    """
    given = os.environ.get(PATIENCE_VARIABLE)
    if given is None:
        return PATIENCE_SECONDS
    if not given.isdecimal() or int(given) == 0:
        raise ConfigError(PATIENCE_VARIABLE, repr(given), "Give whole seconds, such as 30.")
    return float(given)


def ask(model: str) -> tuple[str, ...]:
    """The names of the model's files at the hub.

    Raises:
        NotAtHubError: it has none of this name.
        GatedError: it has, and does not give it to this user.
        HubSilentError: it cannot be reached, or takes longer than :func:`patience`.
        ConfigError: see :func:`patience`.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    seconds, answers = patience(), list[Any]()

    def look() -> None:
        try:
            found = HfApi().model_info(model, timeout=seconds)
            if found.gated:
                HfApi().auth_check(model)
            answers.append(found)
        except Exception as error:  # noqa: BLE001 - raised below, on the thread that asks
            answers.append(error)

    # On a thread, as a name server that does not answer knows no timeout.
    asking = threading.Thread(target=look, name="hub", daemon=True)
    asking.start()
    asking.join(seconds)
    answer = answers[0] if answers else TimeoutError()
    if isinstance(answer, GatedRepoError):
        raise GatedError(_first_line(answer)) from answer
    if isinstance(answer, RepositoryNotFoundError):
        raise NotAtHubError("no such model at the hub") from answer
    if isinstance(answer, HfHubHTTPError):
        raise NotAtHubError(f"the hub refuses it: {_first_line(answer)}") from answer
    if isinstance(answer, Exception):
        late = f"{constants.ENDPOINT} did not answer within {seconds:.0f} s"
        why = late if "Timeout" in type(answer).__name__ else _first_line(answer)
        raise HubSilentError(f"the hub cannot be asked: {why}") from answer
    return tuple(file.rfilename for file in answer.siblings or ())


def fetch(model: str, names: Sequence[str], tell: Callable[[str], None]) -> Path:
    """The folder with what a causal language model is loaded from, fetched where it is not cached.

    Args:
        names: of all its files.
        tell: told how much is there, and how long the rest takes, once a second and once for each
            hundredth at the most.

    Raises:
        OSError: the hub stopped answering, or there is no room.
    """
    from huggingface_hub import snapshot_download

    needed = wanted(names)
    plan = snapshot_download(model, allow_patterns=needed, dry_run=True)
    missing = sum(file.file_size or 0 for file in plan if file.will_download)
    bar = _bar_that_tells(model, missing, tell) if missing else None
    return Path(snapshot_download(model, allow_patterns=needed, tqdm_class=bar))


def fetch_config(model: str) -> Path:
    """The folder of the hub's cache with the model's ``config.json``, fetched alone.

    Raises:
        NotAtHubError: the hub refuses it, or it has none.
        HubSilentError: it stopped answering.
        ConfigError: see :func:`patience`.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    try:
        path = hf_hub_download(model, "config.json", etag_timeout=patience())
    except EntryNotFoundError as error:
        raise NotAtHubError("it has no config.json at the hub") from error
    except HfHubHTTPError as error:
        raise NotAtHubError(f"the hub refuses it: {_first_line(error)}") from error
    except OSError as error:
        raise HubSilentError(f"the hub cannot be asked: {_first_line(error)}") from error
    return Path(path).parent


def wanted(names: Sequence[str]) -> list[str]:
    """Of a model's files those that it is loaded from: no copies in other formats."""
    top = [name for name in names if "/" not in name]
    weights = next(
        (
            found
            for begin, end in WEIGHTS
            if (found := [n for n in top if n.startswith(begin) and n.endswith(end)])
        ),
        [],
    )
    return [*(name for name in top if name.endswith(TEXTS)), *weights]


def _bar_that_tells(model: str, total: int, tell: Callable[[str], None]) -> type[Any]:
    """What the hub's client takes for a bar of tqdm's.

    Its own total counts only the files that it has begun with.
    """
    from tqdm import tqdm

    started = time.monotonic()
    told = [-1, started - TELL_SECONDS]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **{**settings, "file": io.StringIO()})

        def display(self, *_: Any, **__: Any) -> bool:
            now, done = time.monotonic(), min(self.n, total)
            part = 100 * done // total
            if self.unit == "B" and part > told[0] and now >= told[1] + TELL_SECONDS and done > 0:
                told[:] = [part, now]
                left = duration((now - started) * (total - done) / done)
                size = f"{done / MEGABYTE:.0f} of {total / MEGABYTE:.0f} MB"
                tell(f"fetching {model}: {size}, about {left} left")
            return True

    return Bar


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


SHIPPED = ("tiny", "tiny-wide", "tiny-working", "tiny-games")
REMEDY = "Name a folder made by save_pretrained, a hub id of a causal language model, or 'tiny'."

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


def shipped_folder(model: str) -> Path:
    """Folder of a model that comes with the package.

    Raises:
        PolicyError: it is not there.
    """
    folder = Path(__file__).parents[1] / "models" / model
    if not folder.is_dir():
        raise PolicyError(
            "policy.model",
            f"{model!r}, but {folder} does not exist",
            "Install swarm-node again, or make the model with examples/tiny_model.",
        )
    return folder


def no_model(model: str, why: str) -> PolicyError:
    """What to say of a model that cannot be loaded."""
    return PolicyError("policy.model", f"{model!r} ({why})", REMEDY)


def no_folder(model: str) -> str:
    """Why a name that can only be a folder is none; empty where it is one, or a hub id."""
    path = Path(model).expanduser()
    if path.is_dir():
        return "" if (path / "config.json").is_file() else "there is no config.json in this folder"
    return "" if _HUB_ID.fullmatch(model) and not model.startswith(".") else "no such folder"


def unreachable(model: str, why: str) -> PolicyError:
    """What to say of a model whose hub cannot be asked."""
    return PolicyError(
        "policy.model",
        f"{model!r} (no such folder here, and {why})",
        "Look at this machine's network and at HF_ENDPOINT, name a folder with the model, or give "
        f"a slow hub more seconds with {PATIENCE_VARIABLE}.",
    )


def gated(model: str) -> PolicyError:
    """What to say of a model whose owner has to let this user in first."""
    return PolicyError(
        "policy.model",
        f"{model!r} (it is gated: the hub gives it only to those who accepted its terms)",
        "Accept them on the model's page, log in with: hf auth login, and start again.",
    )


def check_model(model: str) -> None:
    """Look whether there is such a model: shipped, a folder, in the hub's cache, or at the hub.

    What is here is looked at too, without torch: its configuration, and the sizes of its files.

    Raises:
        PolicyError: there is none, the hub does not answer, or it cannot be trained.
        ConfigError: see :func:`node.policy.model_source.patience`.
    """
    if model in SHIPPED:
        shipped_folder(model)
    elif (folder := Path(model).expanduser()).is_dir():
        _of_user(folder, model)
    elif is_gguf(folder):
        raise gguf(model)
    elif why := no_folder(model):
        raise no_model(model, why)
    elif here := cached(model):
        check_kind(here, model)
        if offline():
            check_weights(here, model)
    else:
        _at_hub(model)


def located(model: str, tell: Callable[[str], None]) -> Path:
    """The folder that a model is loaded from: shipped, one of the user's, or the hub's cache, into
    which what is missing is fetched.

    A hub that is silent about a model of which the cache has something is a warning.

    Args:
        tell: told how a download goes on.

    Raises:
        PolicyError: there is none, the hub does not answer, or it cannot be trained.
        ConfigError: see :func:`node.policy.model_source.patience`.
    """
    if model in SHIPPED:
        return shipped_folder(model)
    if (folder := Path(model).expanduser()).is_dir():
        _of_user(folder, model)
        return folder
    if is_gguf(folder):
        raise gguf(model)
    if why := no_folder(model):
        raise no_model(model, why)
    found = _from_hub(model, tell)
    check_kind(found, model)
    check_weights(found, model)
    return found


def _of_user(folder: Path, model: str) -> None:
    """Look at a folder that is to hold a model."""
    if why := no_folder(model):
        if any(folder.glob("*.gguf")):
            raise gguf(model)
        raise no_model(model, why)
    check_kind(folder, model)
    check_weights(folder, model)


def _from_hub(model: str, tell: Callable[[str], None]) -> Path:
    """The folder of the cache, with what it lacked, or as it is where the hub is silent."""
    here = cached(model)
    if here and offline():
        return here
    try:
        return fetch(model, _at_hub(model), tell)
    except GatedError as error:
        raise gated(model) from error
    except PolicyError as error:
        if here is None:
            raise
        log.warning("%s What the cache has of it is used.", error)
        return here


def config_folder(model: str) -> Path:
    """A folder with the model's ``config.json``, of which nothing else need be there: the model's
    own, or the hub's cache, into which that one file is fetched.

    Raises:
        PolicyError: there is none, or the hub does not answer.
        ConfigError: see :func:`node.policy.model_source.patience`.
    """
    if model in SHIPPED:
        return shipped_folder(model)
    if why := no_folder(model):
        raise no_model(model, why)
    if (folder := Path(model).expanduser()).is_dir():
        return folder
    if here := cached(model):
        return here
    _at_hub(model)
    try:
        return fetch_config(model)
    except NotAtHubError as error:
        raise no_model(model, str(error)) from error
    except HubSilentError as error:
        raise unreachable(model, str(error)) from error


def _at_hub(model: str) -> tuple[str, ...]:
    """Names of its files there."""
    if offline():
        raise no_model(model, "it is not in the cache, and HF_HUB_OFFLINE is set")
    try:
        return ask(model)
    except GatedError as error:
        raise gated(model) from error
    except NotAtHubError as error:
        raise no_model(model, f"no such folder here, and {error}") from error
    except HubSilentError as error:
        raise unreachable(model, str(error)) from error
