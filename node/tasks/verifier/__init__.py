"""Who judges answers: the worker behind its walls, and its owner."""
