"""Sandbox for processes that score untrusted text: namespaces, Landlock, seccomp."""
