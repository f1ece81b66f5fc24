"""The network in a process of its own, so that nothing strangers send runs beside the learner."""
