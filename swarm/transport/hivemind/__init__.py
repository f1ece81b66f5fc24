"""The transport over real p2p daemons: hivemind's hash table and libp2p streams."""
