"""The transport over real p2p daemons: hivemind's DHT and libp2p streams."""
