"""One policy update: losses, advantages, corrections, gradients and optimizer."""
