"""Real nodes on real networks: an open one, and several kinds of routers."""
