"""What stands in for real parts where a swarm is simulated, and what it was measured from."""
