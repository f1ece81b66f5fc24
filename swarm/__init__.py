"""Sharing of groups: directory, exchange, admission, accounts and replay buffer. No torch."""
