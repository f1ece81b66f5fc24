"""Who is in a swarm and what they share, as one observer sees it: counted, bounded and kept."""
