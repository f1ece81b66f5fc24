"""``python -m node.config.reference`` writes docs/configuration.md from the config classes."""

from __future__ import annotations

from pathlib import Path

from node.config.config import Config
from node.config.toml import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

if __name__ == "__main__":
    PAGE.write_text(reference(Config()), encoding="utf-8")
