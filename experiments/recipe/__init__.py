"""Recipes of the tiny models, and a verifier without a sandbox."""
