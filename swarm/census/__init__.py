"""Swarm statistics of one observer: members and shared groups, bounded and kept."""
