"""What a model takes on this machine, and the configuration that fits both."""
