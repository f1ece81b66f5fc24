"""Whether a peer does what ``docs/protocol.md`` says, whatever it is written in."""
