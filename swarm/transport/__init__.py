"""The network layer: transports, and limits that protect them from peers."""
