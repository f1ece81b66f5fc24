"""Files that survive a crash: the run folder, whole writes, checkpoints."""
