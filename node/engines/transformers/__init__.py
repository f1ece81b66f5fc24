"""Engine and backend that decode with the policy's own ``transformers`` model."""
