"""Memory and speed of a model on this machine, and a configuration that fits."""
