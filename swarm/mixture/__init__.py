"""What an update takes from outside: bounds for every author, and a rule for how much and what."""
