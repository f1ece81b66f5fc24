"""The page of a whole swarm, for everybody: files, served from memory or by any web host."""
