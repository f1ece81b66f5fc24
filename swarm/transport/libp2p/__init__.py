"""Transport without a daemon: streams and the DHT on the libp2p package."""
