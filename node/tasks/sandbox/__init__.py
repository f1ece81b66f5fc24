"""Walls around a process that scores hostile text: namespaces, Landlock, seccomp."""
