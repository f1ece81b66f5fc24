"""Threads, child processes, and message channels between a process and its child."""
