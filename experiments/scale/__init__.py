"""Simulated swarms of up to ten thousand nodes, with stubs for verifier and learner."""
