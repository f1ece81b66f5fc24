"""Own and external groups on their way to an update: drawn, written, scored, checked."""
