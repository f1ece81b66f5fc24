"""Members on the same local network: announced and found by multicast DNS, and dialled."""
