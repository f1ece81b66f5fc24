"""What a node shows of itself: a terminal view, JSON lines, Prometheus and TensorBoard."""
