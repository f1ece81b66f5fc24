"""Real nodes on real networks: an open one, and what lies behind routers of several kinds."""
