"""The one TOML file that a node is set up with: its tables, its checks and its reference page."""
