"""A node's membership in a swarm. Its network thread never makes the learner wait."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from node.config.config import Config
from node.config.registry import TRANSPORTS
from node.errors import NodeError
from node.lifecycle import Opened
from node.network.creation import unlisted
from node.network.pinned_manifest import pinned_manifest
from node.network.transports import TransportKind
from node.storage.run_folder import RunFolder
from node.tasks.task_set import allowed_by
from node.tasks.verifier.verifier import Verifier
from node.threads import LoopThread
from protocol.identity import Identity
from protocol.manifest import AdmissionRule, Manifest, ProofOfWork, open_manifest, swarm_id, work
from protocol.profile import MAX_VERSION, Profile
from protocol.rollout import Group
from swarm.admission import Admission
from swarm.collector import CollectorLimits
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.util import duration, version
from swarm.groups import Origin
from swarm.lan import Discovery
from swarm.member import Experience, Member, MemberStatus, assemble
from swarm.reputation import Accounts
from swarm.transport.peer_connections import peer_of
from swarm.transport.transport import Transport

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
MIB = 1 << 20
TRIAL = 5000  # hashes that measure what a proof of work costs, some 10 ms


def check_work(rule: AdmissionRule, most: float) -> tuple[str, ...]:
    """Return what a manifest's proof of work costs here; raise NodeError above ``most`` seconds."""
    if not isinstance(rule, ProofOfWork):
        return ()
    begin = time.perf_counter()
    for nonce in range(TRIAL):
        work(b"", b"", nonce)
    seconds = (time.perf_counter() - begin) / TRIAL * 2.0**rule.bits
    cost = f"{rule.bits} bits, about {duration(seconds)} of one core at each start"
    if seconds > most:
        remedy = f"Join another swarm, or accept: --set network.work_seconds={2 * seconds:.0f}."
        raise NodeError("the swarm requires too much proof of work", cost, remedy)
    return (f"proof of work before the first announcement: {cost}",)


@dataclass(eq=False, repr=False)
class Membership(Opened):
    """Membership in the swarm of a run folder's manifest, from joining to leaving.

    With ``takes``, peer groups are pulled and admitted; with ``samples``, only counted. ``model``
    is the public name, or empty. A ``quiet`` node announces and serves nothing.
    """

    config: Config
    folder: RunFolder
    experience: Experience
    counters: Counters
    _: KW_ONLY
    takes: bool = True
    model: str = ""
    samples: bool = False
    quiet: bool = False
    identity: Identity = field(init=False)
    manifest: Manifest = field(init=False)
    swarm_id: bytes = field(init=False)

    def __post_init__(self) -> None:
        self._status: MemberStatus | None = None
        self.failure: Exception | None = None  # recurs in the network side, or ended it
        self.accounts: Accounts = self.experience.accounts
        self.notes: tuple[str, ...] = ()  # what happened while joining, one sentence each

    def publish(self, groups: Sequence[Group], origin: Origin) -> None:
        """Hand over local groups; the network thread seals and announces them."""
        self.experience.outbox.put(groups, origin)

    def status(self) -> MemberStatus:
        """Return the member's status, which is refreshed every second."""
        assert self._status is not None, "status is known once the membership is entered"
        return self._status

    def _open(self, stack: ExitStack) -> None:
        network = self.config.network
        self.identity = Identity.load(self.folder.identity)
        self._claim("identity", self.identity.author, self.folder.identity)
        loop = LoopThread("network")
        stack.callback(loop.close)
        kind: TransportKind = TRANSPORTS.open(network.transport, network.transport_options)
        # Without a learner there is nothing that unknown peers could slow down.
        has_learner = self.takes and not self.samples
        transport = kind.open(network, self.folder, self.counters, beside=has_learner)
        stack.callback(lambda: loop.call(transport.close()))
        loop.call(transport.start())
        lan: Discovery | None = None
        if network.lan:
            lan = Discovery(transport, network.listen, SystemClock(), self.counters)
            stack.callback(lambda: loop.call(lan.close()))
        coroutine = pinned_manifest(self.config, self.folder, self.identity, transport, lan)
        signed, self.notes = loop.call(coroutine)
        self.manifest, self.swarm_id = open_manifest(signed), swarm_id(signed)
        self._claim("swarm", self.swarm_id, self.folder.manifest)
        if not self.quiet:
            self.notes += check_work(self.manifest.admission, network.work_seconds)
        if self.takes and not self.samples:
            self.notes += unlisted(self.manifest.admission, self.identity.author)
        if network.peers and not transport.peers():
            self.notes += ("no named peer answers: continuing alone; the node keeps dialing",)
        allowed = allowed_by(self.config.tasks, self.config.sandbox)
        verifier = stack.enter_context(
            Verifier(self.manifest.catalogue, allowed, outside=True, counters=self.counters)
        )
        member = loop.call(self._member(transport, verifier, signed))
        self._status = member.status()
        coroutines = [self.follow(member), *([lan.run(self.swarm_id)] if lan else [])]
        for future in map(loop.start, coroutines):
            stack.callback(future.cancel)

    def _claim(self, what: str, digest: bytes, path: Path) -> None:
        if not self.experience.journal.claim(what, digest):
            what = f"the journal in this run folder belongs to another {what} than"
            remedy = (
                "Put the earlier file back, or start a new run in another folder. To continue "
                "with this policy there: swarm-node export, then init --model."
            )
            raise NodeError(what, path, remedy)

    async def _member(self, transport: Transport, verifier: Verifier, signed: bytes) -> Member:
        network, clock, counters = self.config.network, SystemClock(), self.counters
        experience, own, profile = self.experience, self.config.profile, None
        if own.name or own.line:
            profile = Profile(own.name, own.line, self.model, version()[:MAX_VERSION], clock.time())
        admission = Admission(
            self.manifest,
            self.swarm_id,
            verifier,
            self.accounts,
            experience.journal,
            clock,
            counters,
            shown=experience.refused,
        )
        return assemble(
            transport,
            self.identity,
            signed,
            admission,
            experience,
            clock=clock,
            counters=counters,
            limits=CollectorLimits(
                network.gossip_peers,
                network.pulls_per_epoch if self.takes else 0,
                blind=self.samples,
                named=frozenset(map(peer_of, network.peers)),
            ),
            upload_rate=network.upload_mib_per_s * MIB,
            secret=secrets.token_bytes(32),
            profile=profile,
            quiet=self.quiet,
        )

    async def follow(self, member: Member) -> None:
        """Run the member on the network thread and read its status every second."""
        task = asyncio.ensure_future(member.run())
        try:
            while not task.done():
                self._status = member.status()
                self.failure = member.failure
                await asyncio.wait({task}, timeout=LOOK_SECONDS)
            task.result()
        except Exception as error:  # whatever ends the member is counted, and kept in `failure`
            self.failure = error
            self.counters.add("member_stopped")
            log.exception("the network process stopped")
        finally:
            task.cancel()
