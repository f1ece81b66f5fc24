"""The node's TOML configuration: sections, validation, plugins and reference page."""
