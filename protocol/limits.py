"""Hard limits of the protocol, in bytes unless said otherwise. A manifest can only tighten them."""

from __future__ import annotations

MAX_FRAME_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 1 << 18
MAX_RECORD_BYTES = 1024
MAX_OFFERS = 4

MAX_DEPTH = 12
"""Announcements of an epoch are spread over 2 to this power of keys at most."""

PLAIN_RATIO = 4
"""A frame's body may unpack to this many times the manifest's ``max_frame_bytes``."""

MAX_ITEMS = 1 << 17
"""Values (keys and containers included) in one frame body."""

MAX_GROUPS = 1024
MAX_COMPLETIONS = 1024
MAX_SEGMENTS = 64

MAX_INT = (1 << 63) - 1
"""Largest integer in any field, so that every language holds it in a signed 64-bit word."""
