"""Members on the local network: announced and discovered by multicast DNS."""
