"""A member without a daemon: connections, streams and the hash table over the package libp2p."""
