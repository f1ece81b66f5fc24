"""Keys as bytes and as text."""
