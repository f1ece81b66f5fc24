"""Environments: tasks of many turns."""
