"""An open network with routers and hosts on either side, in its own namespaces.

It needs no root if the system lets users create namespaces. A router is Linux's own address
translation, so it filters packets and chooses ports like home routers. libp2p takes the addresses
of the open network for public ones, but no packet leaves the machine.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

Kind = Literal["port-restricted", "symmetric", "forwarding"]
"""How a router translates: it keeps the port, or uses another one for each peer.
All admit contacted peers; ``forwarding`` also sends port :data:`FORWARDED` to its first host."""

FORWARDED = 31337
NAMESPACE_SECONDS = 10.0
_RULES: dict[Kind, tuple[str, ...]] = {
    "port-restricted": ("masquerade",),
    "symmetric": ("masquerade fully-random",),
    "forwarding": ("masquerade",),
}


def why_not_here() -> str:
    """Return what this machine lacks for a laboratory; empty if nothing is missing."""
    if missing := [tool for tool in ("unshare", "nsenter", "ip", "nft") if not shutil.which(tool)]:
        return f"not installed: {', '.join(missing)} (Debian: util-linux, iproute2, nftables)"
    forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
    probe = f"ip link add probe type bridge && nft add table ip probe && {forward}"
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", probe]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no network namespaces: {tried.stderr.strip()}"


@dataclass(frozen=True, slots=True)
class Place:
    """One namespace.

    Attributes:
        prefix: the words that run a command in it.
        number: the host number of its address in its network.
        ipv4, ipv6: its addresses towards the open network or its router.
    """

    prefix: tuple[str, ...]
    number: int
    ipv4: str
    ipv6: str

    def run(self, *command: str) -> None:
        subprocess.run([*self.prefix, *command], check=True, capture_output=True)


@dataclass(slots=True)
class Laboratory:
    """The open network; :meth:`close` ends its hosts and routers."""

    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=lambda: count(2))
    _open: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._open = self._namespace("unshare", "--user", "--map-root-user", "--net")
        for words in (
            "link set lo up",
            "link add open type bridge",
            "addr add 11.7.0.1/16 dev open",
            "addr add 2a00:77::1/64 dev open nodad",
            "link set open up",
        ):
            self._ip(self._open, words)

    def host(self) -> Place:
        return self._on(self._open, "open", "11.7.0", "2a00:77:", gateway="")

    def router(self, kind: Kind) -> Place:
        """Add a router, which supports only IPv4, to the open network."""
        router = self.host()
        lan = f"192.168.{router.number}"
        for words in (
            "link add lan type bridge",
            f"addr add {lan}.1/24 dev lan",
            "link set lan up",
        ):
            self._ip(router.prefix, words)
        router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        rules = "\n".join(f"oifname eth0 {rule}" for rule in _RULES[kind])
        rule = f"iifname eth0 tcp dport {FORWARDED} dnat to {lan}.2"
        forward = rule if kind == "forwarding" else ""
        table = (
            "table ip nat {\n"
            f"chain out {{ type nat hook postrouting priority srcnat;\n{rules}\n}}\n"
            f"chain in {{ type nat hook prerouting priority dstnat;\n{forward}\n}}\n"
            "}\n"
            "table ip filter {\n"
            "chain forward { type filter hook forward priority filter; policy drop;\n"
            "iifname lan accept\nct state established,related accept\nct status dnat accept\n}\n"
            "chain input { type filter hook input priority filter; policy drop;\n"
            "iifname != eth0 accept\nct state established,related accept\n"
            "ip protocol icmp accept\n}\n"
            "}\n"
        )
        subprocess.run([*router.prefix, "nft", "-f", "-"], input=table.encode(), check=True)
        return router

    def behind(self, router: Place, number: int = 2) -> Place:
        lan = f"192.168.{router.number}"
        return self._on(router.prefix, "lan", lan, "", gateway=f"{lan}.1", number=number)

    def resolving(self, place: Place, server: Place, file: Path) -> Place:
        """Return ``place`` for commands that use ``server`` for names; write ``file``."""
        file.write_text(f"nameserver {server.ipv4}\n")
        mounted = f'mount --bind {file} /etc/resolv.conf && exec "$@"'
        prefix = (*place.prefix, "unshare", "--mount", "sh", "-c", mounted, "sh")
        return replace(place, prefix=prefix)

    def renumber(self, router: Place) -> str:
        """Give a router a new address, as providers do overnight; return the address."""
        fresh = f"11.7.1.{router.number}"
        self._ip(router.prefix, f"addr del {router.ipv4}/16 dev eth0")
        self._ip(router.prefix, f"addr add {fresh}/16 dev eth0")
        return fresh

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _on(self, network, bridge, ipv4, ipv6, *, gateway: str, number: int | None = None) -> Place:
        number = number or next(self._numbers)
        prefix = self._namespace(*self._open, "unshare", "--net")
        pid = str(self._processes[-1].pid)
        port = f"p{pid}"
        self._ip(network, f"link add {port} type veth peer name eth0 netns {pid}")
        self._ip(network, f"link set {port} master {bridge} up")
        place = Place(prefix, number, f"{ipv4}.{number}", f"{ipv6}:{number:x}" if ipv6 else "")
        self._ip(prefix, "link set lo up")
        self._ip(prefix, f"addr add {place.ipv4}/{24 if gateway else 16} dev eth0")
        if ipv6:
            self._ip(prefix, f"addr add {place.ipv6}/64 dev eth0 nodad")
        self._ip(prefix, "link set eth0 up")
        if gateway:
            self._ip(prefix, f"route add default via {gateway}")
        return place

    def _namespace(self, *command: str) -> tuple[str, ...]:
        """Hold a namespace open; return the prefix that runs a command in it."""
        before = self._open or ("sh", "-c", 'exec "$@"', "sh")
        process = subprocess.Popen([*command, "sleep", "infinity"])
        self._processes.append(process)
        theirs, deadline = f"/proc/{process.pid}/ns/net", time.monotonic() + NAMESPACE_SECONDS
        outer = _read(*before, "readlink", "/proc/self/ns/net")
        while (entered := str(Path(theirs).readlink())) == outer or not _sleeps(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no namespace by {' '.join(command)}: {entered}")
            time.sleep(0.01)
        spaces = (f"--user=/proc/{process.pid}/ns/user", f"--net={theirs}")
        return ("nsenter", "--preserve-credentials", *spaces)

    @staticmethod
    def _ip(prefix: tuple[str, ...], words: str) -> None:
        subprocess.run([*prefix, "ip", *words.split()], check=True)


def _read(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
