"""Threads, child processes and the channel between a process and its child."""
