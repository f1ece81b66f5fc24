"""The loggers, a file each; the name of a file is the name of its kind."""
