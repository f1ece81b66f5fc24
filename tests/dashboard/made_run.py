"""A synthetic run folder with all that a page can show, such as hostile texts."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.monitor.groups import ORIGINS, ShownCompletion, ShownGroup, ShownTokens
from node.storage.run_folder import RunFolder
from protocol.identity import peer_id_of
from tests.node.dashboard.browser import write_rounds

AUTHORS = ("6b" * 32, "a1" * 32, "0f" * 32)
PEERS = (*(peer_id_of(bytes.fromhex(author)) for author in AUTHORS), "12D3KooW" + "d" * 44)
WORDS = ("the", "answer", "is", "forty", "two")


def fill(root: Path, rounds: int = 120, names: Sequence[str] = ()) -> RunFolder:
    folder = RunFolder(root)
    texts = list(names) or ["sorting together"]
    write_rounds(
        folder,
        range(1, rounds + 1),
        time=lambda n: 1.79e9 + n,
        reward_local=lambda n: 0.7 * (1 - math.exp(-n / 250)) + 0.05 * math.sin(n),
        reward_external=lambda n: 0.5 if n % 7 else None,
        reward_eval=lambda n: 0.6 * (1 - math.exp(-n / 300)) if n % 10 == 1 else None,
        entropy=lambda n: 2 * math.exp(-n / 300),
        authors=dict.fromkeys(AUTHORS, 1),
        levels={f"{text}/1": 0.5 for text in texts[:12]},
        peer_advantage=0.01,
        mean_length=17.0,
    )
    folder.groups.write_bytes(b"".join(_groups(texts)))
    folder.write_status(_status(texts))
    folder.log.write_text("".join(f"{_LOG} {_line(text)}\n" for text in texts))
    return folder


_LOG = "2026-11-23 19:00:00,123 WARNING node.run:"


def _line(text: str) -> str:
    """Return a forged log line, which this program would never write."""
    return text.replace("\n", " ").encode(errors="replace").decode()


def _status(texts: Sequence[str]) -> dict[str, Any]:
    text = texts[-1]
    peers = [_peer(at, texts) for at in range(len(PEERS))]
    reach = {"way": "direct", "cause": text, "remedy": text}
    node = {"state": "stopped", "time": 1.79e9, "pid": 1, "peer_id": PEERS[0], "record": None}
    node |= {"addresses": [f"/ip4/127.0.0.1/tcp/4/p2p/{PEERS[0]}"], "reach": reach}
    return {**node, "swarm_id": "ab" * 32, "swarm_name": text, "peers": peers}


def _peer(at: int, texts: Sequence[str]) -> dict[str, Any]:
    name, line, model, version = (texts[(at + n) % len(texts)] for n in range(4))
    told = {"name": name, "line": line, "model": None, "version": None}
    told |= {"model": model, "version": version} if at else {}
    link = {"connected": False, "link": None, "round_trip_s": 0.0123, "clock_ahead_s": -0.25}
    swarm = {"swarm_id": "ab" * 32, "policy_step": 10, "bytes_in": 10_000, "bytes_out": 20_000}
    times = {"heard": 1.79e9, "admitted_at": 1.79e9, "bootstrap": at == 0}
    refused = {"refused": {name: 2, "reward_mismatch": 1}, "strikes": 0.0, "banned": at == 3}
    who = {"peer_id": PEERS[at], "author": AUTHORS[at % len(AUTHORS)], "admitted": 30 * at}
    return {**who, **told, **link, **swarm, **times, **refused}


def _groups(texts: Sequence[str]) -> list[bytes]:
    """Return one group per text and origin, with the text in all fields."""
    return [
        made_group(text, origin, at).line(1 + len(ORIGINS) * at + place)
        for at, text in enumerate(texts)
        for place, origin in enumerate(ORIGINS)
    ]


def made_group(text: str, origin: Any, at: int = 0) -> ShownGroup:
    logprobs, entropies = (-0.01, -0.5, -1.0, -2.0, -4.0, -9.0), (0.05, 0.3, 0.7, 1.2, 2.0, 3.0)
    spelled = ShownTokens((text, *WORDS), logprobs, (1, 1, 2, 2, 3, 3), entropies)
    done = [ShownCompletion(text, float(n % 2), float(n) - 0.5, n == 1, spelled) for n in range(2)]
    return ShownGroup(
        round=at + 1,
        time=1.79e9 + at,
        origin=origin,
        env=text,
        level=1,
        author=None if origin == "own" else AUTHORS[at % len(AUTHORS)],
        prompt=text,
        in_update=origin != "refused",
        reason=None if origin == "own" else text,
        completions=done,
    )


def status_of(folder: RunFolder) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(folder.status.read_text())
    return told
