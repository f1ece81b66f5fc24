"""The life of a node: how it starts, what a round does, and how it goes on after a stop."""
