"""One policy trained by several processes, each on a GPU of its own."""
