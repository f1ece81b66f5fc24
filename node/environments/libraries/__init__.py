"""Environments that other libraries bring, each opened where that library is installed."""
