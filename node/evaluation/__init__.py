"""Evaluation on held-out tasks: rewards, comparison, export and single questions."""
