"""Trajectories: a policy and an environment by turns."""
