"""One participant of a swarm: tasks, engine, policy, learner, rounds, journal and commands."""
