"""A transport in a child process that handles peers' input apart from the learner."""
