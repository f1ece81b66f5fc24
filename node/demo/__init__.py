"""A demo swarm on one machine."""
