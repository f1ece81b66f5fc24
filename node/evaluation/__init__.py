"""How good the policy is on questions that nobody trains on."""
