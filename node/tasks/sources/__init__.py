"""Task sources: reasoning-gym, JSONL files, plugins and environments."""
