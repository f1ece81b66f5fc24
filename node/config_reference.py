"""``python -m node.config_reference`` writes docs/configuration.md from the config classes."""

from __future__ import annotations

from pathlib import Path

from node.config import Config
from node.config_toml import reference

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

if __name__ == "__main__":
    PAGE.write_text(reference(Config()), encoding="utf-8")
