"""A node's files: its run folder, atomic writes and checkpoints."""
