"""Which peers' groups an update takes: caps per author, and a selection rule."""
