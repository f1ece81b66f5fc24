"""The page that shows a node in a browser, and the JSON behind it, read from its run folder."""
