"""One update of the policy: losses, advantages, corrections, gradients and the optimizer."""
