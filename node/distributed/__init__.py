"""Training of one policy by several processes, each on its own GPU."""
