"""Trajectories: turns of a policy in an environment."""
