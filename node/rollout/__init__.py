"""Local and peers' groups before an update: sampled, generated, scored, checked."""
