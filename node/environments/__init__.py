"""Environments: multi-turn tasks."""
