"""Stand-in for fastecdsa 2.3.2, which libp2p requires and PyPI has as C source only.

libp2p imports it for keys on P-256 in its SECIO handshake, which swarm-node does not offer. The
arithmetic is that of ``cryptography``; only what ``libp2p.crypto.ecc`` and
``libp2p.crypto.key_exchange`` call is here.
"""
