"""Property tests judge results, never how long a busy machine took; Ctrl-C can be tested."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in whatever a script starts with "&"; every process of a test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
