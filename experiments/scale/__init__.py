"""Simulated swarms of up to ten thousand nodes, with stubs for judge and learner."""
