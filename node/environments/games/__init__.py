"""Small games and tools, made anew from every seed, that small models learn."""
