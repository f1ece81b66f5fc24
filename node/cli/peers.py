"""``swarm-node peers``, ``trust`` and ``block``: the peers met, and what the user says of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from node.cli.options import (
    ConfigOption,
    JsonOption,
    LoadedNode,
    open_node,
    print_json,
    say_lines,
    waiting,
)
from node.config.overrides import pasted_peer
from node.errors import UsageError
from node.monitor.output import printable, say
from node.monitor.record import NONE, Terminal, refusals, short_ids, size
from node.storage.run_folder import (
    OF_A_CONNECTION,
    PROFILE_KEYS,
    ListedPeers,
    RunFolder,
    present_status,
)
from protocol.errors import BadKey
from protocol.identity import Identity, author_of, peer_id_of
from swarm.common.fair_limits import author_or_none
from swarm.common.util import counted, duration
from swarm.reputation import (
    PENALTY_HALF_LIFE_S,
    RELEASE_AT,
    Account,
    is_banned,
    read_accounts,
)

# About a peer that left.
UNKNOWN = (*OF_A_CONNECTION, "swarm_id", *PROFILE_KEYS, "policy_step", "heard")
NAME_WIDTH = 16  # of a name in the table; the view of one peer has all of it


def peers_command(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="[PEER]",
            help="Beginning of a peer id or of an author's public key: show all about that peer.",
        ),
    ] = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the known peers, with their contributions and refused groups.

    With a peer id or an author's key, or its beginning, show all about that peer, also one that
    left. Peers that left stay listed if they are trusted, blocked or banned, and the latest that
    gave groups.
    """
    node = open_node(config)
    status = present_status(node.folder)
    present, swarm = status["peers"], status["swarm_id"]
    trusted, blocked = _trusted(node).all(), ListedPeers("blocked", node.folder).added()
    ids = {peer["peer_id"] for peer in present}
    peers = [*present, *_departed(node.folder, ids, (*trusted, *blocked), prefix)]
    for peer in peers:
        peer["trusted"], peer["blocked"] = peer["peer_id"] in trusted, peer["peer_id"] in blocked
    if prefix:
        peer = _peer_named(prefix, peers)
        if json:
            print_json(peer)
        else:
            say_lines(f"{name:<12}{value}" for name, value in _facts(peer, swarm))
    elif json:
        print_json(peers)
    elif peers:
        Terminal().print_table(_table(peers, swarm))
        if more := status.get("peers_more"):
            Terminal().print(f"and {more} more")
    else:
        Terminal().print("no known peers yet")


def _trusted(node: LoadedNode) -> ListedPeers:
    return ListedPeers("trusted", node.folder, node.config.mixture.trusted)


NAMED = 8
MOST_LEFT = 64  # peers that left and that the user did not name


def _peer_named(given: str, peers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the peer whose id or public key starts with ``given``.

    Text around a peer id is ignored. A whole id takes precedence. Raises UsageError if no peer or
    several peers match.
    """
    prefix = pasted_peer(given)
    matches = [peer for peer in peers if any(name.startswith(prefix) for name in _names(peer))]
    exact = [peer for peer in matches if prefix in _names(peer)]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    ids = [peer["peer_id"] for peer in matches or peers]
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    choices = ", ".join(ids[:NAMED]) + more
    if matches:
        remedy = f"Write more digits of one of these: {choices}."
        raise UsageError("several peers have ids that begin with", given, remedy)
    remedy = f"The known ones are {choices}." if peers else "None are known yet."
    raise UsageError("no peer whose id begins with", given, remedy)


def _departed(
    folder: RunFolder, present: set[str], listed: Sequence[str], prefix: str
) -> list[dict[str, Any]]:
    """Return what the journal has of peers that left, with a ``prefix`` of all of them.

    Else of the ``listed`` ones, and the latest that are banned or gave groups.
    """
    now = time.time()
    accounts = {peer_id_of(each.author): each for each in read_accounts(folder.journal)}
    ids = [p for p, each in accounts.items() if prefix or each.admitted or is_banned(each, now)]
    selected = (*listed, *(ids if prefix else ids[:MOST_LEFT]))
    departed = [peer for peer in dict.fromkeys(selected) if peer not in present]
    records = [accounts.get(peer) or Account(author_of(peer)) for peer in departed]
    return [
        {
            "peer_id": peer,
            "author": each.author.hex(),
            **dict.fromkeys(UNKNOWN),
            **dict.fromkeys(("connected", "bootstrap"), False),
            **each.figures(now),
            "banned": is_banned(each, now),
        }
        for peer, each in zip(departed, records, strict=True)
    ]


def _names(peer: dict[str, Any]) -> tuple[str, ...]:
    author = author_or_none(peer["peer_id"])
    return (peer["peer_id"],) if author is None else (peer["peer_id"], author.hex())


def _table(peers: list[dict[str, Any]], swarm_id: str | None) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("peer", no_wrap=True)
    has_names = any(peer.get("name") for peer in peers)
    if has_names:
        table.add_column("name", no_wrap=True)
    kinds = [word for peer in peers for word in _kind(peer, swarm_id).split()]
    table.add_column("", min_width=max(map(len, kinds), default=None))
    table.add_column("when", min_width=len("59 min"))
    for column in ("in", "out", "groups", "penalty"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("refused", min_width=len("refused"), overflow="fold")
    for peer, short_id in zip(peers, short_ids([p["peer_id"] for p in peers]), strict=True):
        name = Text(printable(peer.get("name") or ""))
        name.truncate(NAME_WIDTH, overflow="ellipsis")
        table.add_row(
            short_id,
            *([name] if has_names else []),
            _kind(peer, swarm_id),
            f"{_ago(peer.get('heard'))}/{_ago(peer.get('admitted_at'))}",
            size(peer["bytes_in"]),
            size(peer["bytes_out"]),
            str(peer["admitted"]),
            f"{round(peer['strikes'], 2):g}",
            _refused(peer),
        )
    return table


def _facts(peer: dict[str, Any], swarm_id: str | None) -> list[tuple[str, str]]:
    _, *author = _names(peer)
    step, seconds = peer.get("policy_step"), peer.get("round_trip_s")
    links = {"direct": "yes, directly", "relayed": "yes, through a relay"}
    link = links.get(peer.get("link") or "", "yes") if peer["connected"] else "no"
    groups = counted(peer["admitted"], "group")
    return [
        ("peer id", peer["peer_id"]),
        ("author", author[0] if author else NONE),
        *((f"its {key}", peer[key]) for key in PROFILE_KEYS if peer.get(key)),
        ("kind", _kind(peer, swarm_id) or "node"),
        ("connected", link),
        ("round trip", NONE if seconds is None else f"{1000 * seconds:.3g} ms"),
        ("clock", _clock(peer)),
        ("heard", _ago(peer.get("heard"))),
        ("admitted", f"{groups}, the last {_ago(peer.get('admitted_at'))}"),
        ("policy step", NONE if step is None else str(step)),
        ("in", size(peer["bytes_in"])),
        ("out", size(peer["bytes_out"])),
        ("penalties", f"{round(peer['strikes'], 2):g}{_ban(peer)}"),
        ("refused", _refused(peer)),
    ]


def _kind(peer: dict[str, Any], swarm_id: str | None) -> str:
    kinds = {
        "no step": peer.get("bootstrap"),
        "relayed": peer.get("link") == "relayed",
        "trusted": peer.get("trusted"),
        "blocked": peer.get("blocked"),
        "another swarm": peer.get("swarm_id") not in (None, swarm_id),
        "banned": peer["banned"],
    }
    return ", ".join(name for name, is_set in kinds.items() if is_set)


def _ban(peer: dict[str, Any]) -> str:
    """Return how long a ban lasts if no penalty follows."""
    seconds = math.log2(max(1.0, peer["strikes"] / RELEASE_AT)) * PENALTY_HALF_LIFE_S
    return f", banned for {duration(seconds)} more" if peer["banned"] else ""


def _clock(peer: dict[str, Any]) -> str:
    """Return the peer's clock offset from this machine's, and its uncertainty."""
    offset, round_trip = peer.get("clock_ahead_s"), peer.get("round_trip_s")
    if offset is None or round_trip is None:
        return NONE
    side = "ahead" if offset > 0 else "behind"
    return f"{abs(offset):.3g} s {side}, ± {round_trip / 2:.1g} s"


def _ago(unix: float | None) -> str:
    return NONE if unix is None else duration(max(0.0, time.time() - unix))


def _refused(peer: dict[str, Any]) -> str:
    refused = peer["refused"]
    return refusals(refused) if isinstance(refused, dict) else str(refused)


PeersArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PEER]...", help="Whole peer ids, or addresses that end in one."),
]


def trust_command(
    peers: PeersArgument = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Trust them no longer: the limits apply again.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let the groups of named peers fill an update, or list the trusted peers.

    Other peers have at most mixture.author_share of an update each, and mixture.unproven_share
    together until they are proven. The groups of a trusted peer are verified and limited like all
    others. A running node applies a change from its next round.
    """
    node = open_node(config)
    trusted = _trusted(node)
    if not remove:
        blocked = ListedPeers("blocked", node.folder).added()
        for peer in map(_whole, peers or []):
            if peer in blocked:
                remedy = f"Unblock it first with: swarm-node block {peer} --remove."
                raise UsageError("this peer is blocked", peer, remedy)
    _change(trusted, peers or [], remove=remove)
    trusted_by = {
        **dict.fromkeys(trusted.added(), "swarm-node trust"),
        **dict.fromkeys(trusted.configured, "mixture.trusted"),
    }
    if json:
        print_json([{"peer_id": peer, "by": by} for peer, by in trusted_by.items()])
        return
    if not trusted_by:
        say("no trusted peers")
    for peer, by in trusted_by.items():
        say(f"trusts {peer} (by {by})")
    if peers:
        _say_when(node.folder)


def block_command(
    peers: PeersArgument = None,
    remove: Annotated[bool, typer.Option("--remove", help="Block them no longer.")] = False,
    undo: Annotated[
        bool,
        typer.Option(
            "--undo",
            help="Also return to the newest checkpoint before their first group; stop the node.",
        ),
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Ignore the groups of named peers, or list the peers whose groups are ignored.

    A running node applies it from its next round. With --undo the policy forgets what it learned
    from them, and what it learned after that.
    """
    node = open_node(config)
    blocked = ListedPeers("blocked", node.folder)
    if undo and (remove or not peers):
        remedy = "Name the peers whose effect to undo."
        raise UsageError("--undo", "without a peer to block", remedy)
    _change(blocked, peers or [], remove=remove)
    peer_ids = blocked.added()
    if not json:
        # Before the rest, which may fail.
        trusted = _trusted(node).all()
        for peer in peer_ids:
            say(f"blocks {peer}{', although it is trusted' if peer in trusted else ''}")
        if not peer_ids:
            say("no peer is blocked")
    result = _undo(node, [_whole(peer) for peer in peers or ()]) if undo else None
    if json:
        rows = [{"peer_id": peer} for peer in peer_ids]
        print_json(rows if result is None else {"blocked": rows, "undone": result})
    elif result is not None:
        say(_undone(result))
    elif peers:
        _say_when(node.folder)


def _undo(node: LoadedNode, peers: list[str]) -> dict[str, Any]:
    with node.folder.locked():
        pass  # before a wait for torch
    with waiting("looking for the checkpoint from before their groups"):
        from node.run.resume import roll_back_before

        authors = map(author_of, peers)
        steps, entry, rounds = roll_back_before(node.folder, node.config.schedule, authors)
    record = entry and {"round": entry.round, "policy_step": entry.policy_step, "set_aside": rounds}
    return {"updates": steps, "checkpoint": record}


def _undone(result: dict[str, Any]) -> str:
    checkpoint, steps = result["checkpoint"], result["updates"]
    if checkpoint is None:
        return "no update used their groups"
    return (
        f"{counted(len(steps), 'update')} used their groups, the first at policy step {steps[0]}; "
        f"back at round {checkpoint['round']}, policy step {checkpoint['policy_step']}"
    )


def _say_when(folder: RunFolder) -> None:
    running = folder.holder() is not None
    say("the running node applies it from its next round" if running else "no node runs here")


def _whole(text: str) -> str:
    peer = text.strip().rpartition("/p2p/")[-1]
    try:
        author_of(peer)
    except BadKey:
        remedy = "Write the whole id, as in that node's start message and in swarm-node status."
        raise UsageError("not a peer id", text, remedy) from None
    return peer


def _change(peer_list: ListedPeers, names: list[str], *, remove: bool) -> None:
    if remove and not names:
        raise UsageError("--remove", "without a peer", "Name the peers to remove.")
    current, peers = peer_list.added(), [_whole(peer) for peer in names]
    if not remove:
        key = peer_list.folder.identity
        own_id = Identity.load(key).peer_id if key.exists() else ""
        if own_id in peers:
            raise UsageError("this is the node's own id", own_id, "Name another peer.")
        if peers:
            peer_list.write((*current, *peers))
        return
    for peer in peers:
        if peer in peer_list.configured:
            remedy = "Remove it from mixture.trusted in the config, and restart the node."
            raise UsageError("--remove", peer, remedy)
        if peer not in current:
            remedy = f"List the {peer_list.kind} peers with: {peer_list.command}."
            raise UsageError(f"this peer is not {peer_list.kind}", peer, remedy)
    peer_list.write([peer for peer in current if peer not in peers])
