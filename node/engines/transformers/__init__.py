"""The engine and back-end that decode with the policy's own transformers model."""
