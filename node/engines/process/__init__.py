"""An engine in a process of its own, or several of them, seen from their owner."""
