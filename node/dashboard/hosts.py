"""Under which names a dashboard answers: a page of another name that is made to lead here finds
nothing (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re

from node.dashboard.place import ANY

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::(\d{1,5}))?")
LOCAL = "localhost"


class Hosts:
    """The names that the header ``Host`` may have.

    These are the one that was asked for, ``localhost`` where only this machine is served, and IP
    addresses: no name server leads anybody from one address to another. Where only this machine is
    served the address has to be of its loopback.

    Args:
        host: that was asked for.
        private: whether only this machine is served.
    """

    def __init__(self, host: str, *, private: bool) -> None:
        self._private = private
        self._names = {host.lower()} - ANY.keys()
        if private:
            self._names.add(LOCAL)

    def known(self, header: str) -> bool:
        """Whether a header's host, with or without a port, is one of ours."""
        parsed = _HOST.fullmatch(header)
        if not parsed:
            return False
        host = (parsed[1] or parsed[2]).lower()
        return host in self._names or self._is_address(host)

    def same(self, origin: str, header: str) -> bool:
        """Whether a page of this origin was served under that very host and port."""
        return origin.lower() in (f"http://{header.lower()}", f"https://{header.lower()}")

    def _is_address(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or not self._private
