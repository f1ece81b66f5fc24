"""How the tiny models are made: taught the answers, then made to doubt and bury them."""
