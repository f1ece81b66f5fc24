"""Checks of this machine and its network, with remedies."""
