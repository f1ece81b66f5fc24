"""The policy: a causal language model with its tokenizer, adapters and saved forms."""
