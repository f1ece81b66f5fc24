"""Where a model comes from: shipped, a folder, or the hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from node.policy.hub_model import (
    PATIENCE_VARIABLE,
    GatedError,
    HubSilentError,
    NotAtHubError,
    ask,
    cached,
    fetch,
    fetch_config,
    offline,
)
from node.policy.model_files import PolicyError, check_kind, check_weights, gguf, is_gguf

log = logging.getLogger(__name__)

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
        ConfigError: see :func:`node.policy.hub_model.patience`.
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
        ConfigError: see :func:`node.policy.hub_model.patience`.
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
        ConfigError: see :func:`node.policy.hub_model.patience`.
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
