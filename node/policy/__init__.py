"""The policy: a causal language model, its tokenizer, adapters and saved forms."""
