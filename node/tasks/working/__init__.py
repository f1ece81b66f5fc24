"""Tasks whose answer is its own working: steps, each of which is checked, in any right order."""
