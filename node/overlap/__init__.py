"""The overlap schedule: own groups are written and scored while the policy learns."""
