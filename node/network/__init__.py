"""A node's place in a swarm: its identity, the manifest it pinned, and the member at work."""
