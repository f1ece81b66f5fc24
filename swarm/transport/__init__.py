"""The network as the swarm sees it, and what guards it against whoever comes."""
