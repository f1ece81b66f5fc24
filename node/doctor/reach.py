"""Whether others can dial this machine: asked of the peers that were dialled, as a node asks."""

from __future__ import annotations

from collections.abc import Sequence

from node.doctor.finding import Finding, ok, warn
from node.errors import NodeError
from node.storage.run_folder import RunFolder
from protocol.errors import ProtocolError
from protocol.messages import (
    DIAL_BACK_STREAM,
    MAX_DIAL_BACK_RESPONSE_BYTES,
    MAX_PORTS,
    DialledBack,
    decode_dial_back_response,
    encode_dial_back_request,
)
from swarm.transport.transport import (
    Reach,
    Transport,
    TransportError,
    dialled,
    is_relayed,
    port_of,
    told,
)

ANSWER_SECONDS = 10.0


async def check_reach(transport: Transport, peers: Sequence[str]) -> list[Finding]:
    """Have connected peers dial this machine at the ports that the transport listens on."""
    own = (port_of(each) for each in transport.addresses() if not is_relayed(each))
    ports = tuple(dict.fromkeys(port for port in own if port))[:MAX_PORTS]
    answers = []
    for peer in peers:
        try:
            answers.append(await _ask(transport, peer, ports))
        except (TransportError, ProtocolError) as error:
            remedy = "Ask another peer, or its owner for a newer release."
            why = " ".join(str(error).split())
            return [warn("reach", f"{peer} does not try to dial this machine: {why}", remedy)]
    if not answers:
        return []
    hosts = [answer.host for answer in answers]
    return [_finding(told("direct" if dialled(answers) else "unreachable", ports, hosts, 0))]


def told_by_node(folder: RunFolder) -> list[Finding]:
    """What a node that runs in this folder has found out itself."""
    try:
        reach = folder.read_status().get("reach")
    except NodeError:  # one that starts has told nothing yet
        return []
    return [_finding(Reach(**reach))] if reach else []


def _finding(reach: Reach) -> Finding:
    found = f"{reach.way}: {reach.cause}" if reach.cause else reach.way
    return warn("reach", found, reach.remedy) if reach.remedy else ok("reach", found)


async def _ask(transport: Transport, peer: str, ports: tuple[int, ...]) -> DialledBack:
    answer = await transport.request(
        peer,
        DIAL_BACK_STREAM,
        encode_dial_back_request(ports),
        limit=MAX_DIAL_BACK_RESPONSE_BYTES,
        deadline=ANSWER_SECONDS,
    )
    return decode_dial_back_response(answer, ports)
