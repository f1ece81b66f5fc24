"""The back-end over vLLM."""
