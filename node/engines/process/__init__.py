"""Rollout engines that run in separate processes, as their owner sees them."""
