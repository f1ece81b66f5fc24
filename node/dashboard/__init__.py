"""Web pages of a node and of a whole swarm, with the JSON behind them."""
