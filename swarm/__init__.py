"""Shared experience: directory, exchange, admission, accounts and pool. No torch."""
