"""What a simulated swarm spent and what came of it, as tables and as a chart."""
