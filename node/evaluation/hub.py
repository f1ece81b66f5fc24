"""An exported model on its way to a model hub, where its owner says so."""

from __future__ import annotations

from pathlib import Path

import httpx
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from node.errors import NodeError, UsageError


def check_pushable(repo: str) -> None:
    """Look whether a model could be pushed to ``repo``, without asking the hub.

    Raises:
        UsageError: it is no name, nobody is logged in here, or the hub is not to be asked.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError("--push", repo, "Name it as in anna/my-model.") from error
    if constants.HF_HUB_OFFLINE:
        raise UsageError("--push", repo, "HF_HUB_OFFLINE is set: take it away.")
    if get_token() is None:
        raise UsageError("--push", repo, "Log in to the hub first: hf auth login.")


def push(folder: Path, repo: str) -> str:
    """Upload an exported model; its address.

    A repository that is not there is made, for its owner's eyes only.

    Raises:
        NodeError: the hub does not take it, or cannot be reached. The folder stays.
    """
    api = HfApi()
    try:
        found = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=found.repo_id, folder_path=folder, commit_message="Add a model")
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NodeError(
            f"{folder} was written but not pushed to {repo}",
            why,
            f"Try again with: hf upload {repo} {folder}",
        ) from error
    return str(found)
