"""Shared experience: transport, directory, exchange, admission, pool and mixture. No torch."""
