"""Where a model comes from, found out without loading anything of it."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from node.errors import NodeError

SHIPPED = ("tiny", "tiny-wide", "tiny-working")
ASK_SECONDS = 1.2
"""In which the hub has to answer; one that takes longer is asked again when the model is loaded."""
REMEDY = "Name a folder made by save_pretrained, a hub id of a causal language model, or 'tiny'."

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


class PolicyError(NodeError):
    """The policy cannot be loaded."""

    exit_code = 2


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


def check_model(model: str) -> None:
    """Look whether there is such a model: shipped, a folder, in the hub's cache, or at the hub.

    Raises:
        PolicyError: there is none. A hub that is slow to answer is no error.
    """
    if model in SHIPPED:
        shipped_folder(model)
        return
    here = Path(model).expanduser().is_dir()
    if why := no_folder(model) or ("" if here else _not_at_hub(model)):
        raise no_model(model, why)


def _not_at_hub(model: str) -> str:
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return ""
    if constants.HF_HUB_OFFLINE:
        return "it is not in the cache, and HF_HUB_OFFLINE is set"
    found: list[str] = []

    def ask() -> None:
        try:
            HfApi().model_info(model, timeout=ASK_SECONDS)
        except RepositoryNotFoundError:
            found.append("there is no such folder here, and no such model at the hub")
        except Exception as error:  # noqa: BLE001 - the hub's client raises those of its own client
            if not _is_slow(error):
                found.append(f"no such folder here, and the hub cannot be asked: {error}")

    # On a thread, as a name server that does not answer knows no timeout.
    asking = threading.Thread(target=ask, name="hub", daemon=True)
    asking.start()
    asking.join(ASK_SECONDS)
    return found[0] if found else ""


def _is_slow(error: Exception) -> bool:
    return "Timeout" in type(error).__name__
