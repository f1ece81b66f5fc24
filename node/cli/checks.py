"""``swarm-node doctor`` and ``conformance``: check this machine, or another member."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from node.cli.options import (
    ConfigOption,
    JsonOption,
    LoadedNode,
    PeersOption,
    SetOption,
    find_config,
    open_node,
    overrides_of,
    print_json,
    waiting,
)
from node.errors import NodeError, UsageError
from node.monitor.output import as_typed, printable
from node.monitor.record import Terminal
from protocol.errors import ProtocolError
from swarm.transport.transport import TransportError

if TYPE_CHECKING:
    from node.conformance.peer import CaseResult

COLOURS = {"ok": "green", "warn": "yellow", "skip": "yellow", "fail": "red"}


def doctor_command(
    peers: PeersOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Check packages, device, disk, memory, key, clock, ports and peers.

    The exit status is 1 if a check fails.
    """
    from node.cli.join import NEW_FOLDER
    from node.config.config import Config, run_folder
    from node.doctor.checks import check_machine, check_network

    overrides = overrides_of(assignments, peers)
    if find_config(config):
        node = open_node(config, overrides)
    else:
        new_config, path = Config.with_overrides(overrides), NEW_FOLDER / "node.toml"
        node = LoadedNode(path, new_config, run_folder(path, new_config))
    with waiting("checking this machine and its network"):
        findings = [
            *check_machine(node.config, node.folder),
            *check_network(node.config, node.folder),
        ]
    if json:
        rows = map(asdict, findings)
        print_json([{key: row[key] for key in row if key != "brief"} for row in rows])
    else:
        for each in findings:
            remedy = as_typed(each.remedy) if each.remedy else ""
            _show(each.level, f"{each.check:<11}{printable(each.brief or each.found)}", 11, remedy)
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


def _show(level: str, line: str, indent: int, note: str) -> None:
    """Print a result in the color of its level, and a note below it, if there is one."""
    console = Terminal(soft_wrap=True)
    console.print(Text.assemble((f"{level:<4}", COLOURS[level]), f"  {line}"))
    if note:
        console.print(f"      {'':<{indent}}-> {printable(note)}", highlight=False)


EXAMPLE = "/ip4/192.0.2.7/tcp/31337/p2p/12D3Koo…"
MOST_SHOWN = 512  # bytes of one piece that a case sent


def conformance_command(
    address: Annotated[
        str, typer.Option("--peers", metavar="ADDRESS", help="Address of the peer to test.")
    ] = "",
    transport: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Transport of the test client: hivemind or libp2p. [default: an installed one]",
        ),
    ] = None,
    with_bytes: Annotated[
        bool, typer.Option("--bytes", help="Also print the bytes of each case, in hex.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Test a peer against the clauses of docs/protocol.md.

    This is for developers of another implementation. The client connects as an unknown peer with a
    temporary key. The peer may refuse it for a while afterwards. The exit status is 1 if a case
    fails.
    """
    from node.config.sections import NetworkSection

    stack = transport or NetworkSection().transport
    if "/p2p/" not in address:
        raise UsageError("--peers", repr(address), f"Name one peer in full, as {EXAMPLE}.")
    with waiting("testing the peer"):
        findings = asyncio.run(_look(address, stack))
    if json:
        print_json([_as_json(finding, with_bytes=with_bytes) for finding in findings])
    else:
        for result in findings:
            _show(result.outcome, f"{result.clause:<7}{result.says}", 7, result.found)
            for chunk in result.sent if with_bytes else ():
                Terminal(soft_wrap=True).print(f"{'':<13}{chunk.stream}  {_in_hex(chunk.data)}")
        counts = Counter(finding.outcome for finding in findings)
        summary = ", ".join(f"{counts[kind]} {kind}" for kind in ("ok", "skip", "fail"))
        Terminal(soft_wrap=True).print(summary)
    if any(finding.outcome == "fail" for finding in findings):
        raise typer.Exit(1)


def _as_json(finding: CaseResult, *, with_bytes: bool) -> dict[str, Any]:
    sent = [{"stream": chunk.stream, "bytes": chunk.data.hex()} for chunk in finding.sent]
    fields = {**asdict(finding), "sent": sent}
    return fields if with_bytes else {name: fields[name] for name in fields if name != "sent"}


def _in_hex(data: bytes) -> str:
    """Return bytes in hex, only the first of many."""
    suffix = f"… ({len(data)} bytes)" if len(data) > MOST_SHOWN else ""
    return f"{data[:MOST_SHOWN].hex()}{suffix}"


async def _look(address: str, transport: str) -> list[CaseResult]:
    from node.conformance.streams import look_at

    with tempfile.TemporaryDirectory() as folder:
        try:
            return await look_at(address, Path(folder), transport)
        except TransportError as error:
            remedy = "Check it with swarm-node doctor --peers; no case was run."
            raise NodeError("the peer sends no manifest", error, remedy) from error
        except ProtocolError as error:
            failure = "the peer's manifest is not valid"
            remedy = "Test it with the vectors of docs/minimal_member.md first."
            raise NodeError(failure, f"{error.code}: {error}", remedy) from error
