"""Whether a run kept what a node promises, judged by its evidence alone.

Nothing here asks a node. Rewards are computed anew, from the frames that authors served and from
what other peers heard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise

from protocol.announcement import task_seed
from protocol.errors import ProtocolError
from protocol.frame import open_frame
from protocol.manifest import Manifest, open_manifest, swarm_id
from protocol.rollout import Batch, Group, encode_group
from swarm.groups import TaskRef
from swarm.verification import Judge
from tests.chaos.evidence import Evidence

TOLERANCE = 1e-3
LATELY = 20.0
"""Seconds before a death whose offers must still be held: younger than any frame's age limit."""
EXPECTED_ENDS = ("killed", "stopped", "disk full", "refused: clock")

Key = tuple[bytes, int, int]


@dataclass(slots=True)
class Result:
    """One invariant: how often it was looked at, and where it did not hold."""

    name: str
    checked: int = 0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: Callable[[], str]) -> None:
        """Count one look."""
        self.checked += 1
        if not holds:
            self.violations.append(otherwise())


@dataclass(slots=True)
class Told:
    """What authors said in frames: the frame's batch, and every telling of each draw."""

    batches: dict[bytes, tuple[bytes, Batch]] = field(default_factory=dict)
    groups: dict[Key, list[tuple[bytes, Group]]] = field(default_factory=lambda: defaultdict(list))


def read_frames(evidence: Evidence, signed: bytes) -> tuple[Told, Result]:
    """Open every frame on record; signatures and limits must hold."""
    manifest, swarm = open_manifest(signed), swarm_id(signed)
    told, result = Told(), Result("frames are signed and whole")
    for name, frame in evidence.rows("SELECT content_id, frame FROM frames"):
        try:
            opened = open_frame(frame, swarm, manifest)
        except ProtocolError as error:
            result.expect(False, lambda n=name, e=error: f"frame {n.hex()[:12]}: {e}")
            continue
        result.expect(opened.content_id == name, lambda n=name: f"frame {n.hex()[:12]}: misnamed")
        told.batches[name] = (opened.author, opened.batch)
        for group in opened.batch.groups:
            key = (opened.author, group.epoch, group.index)
            told.groups[key].append((name, group))
    return told, result


def only_verified(evidence: Evidence, told: Told, judge: Judge) -> Result:
    """Every external group that an update used has the rewards that this checker computes."""
    result = Result("nothing unverified was trained on")
    query = "SELECT DISTINCT author, epoch, number FROM uses WHERE author!=x''"
    for author, epoch, number in evidence.rows(query):
        tellings = told.groups.get((author, epoch, number))
        where = f"{author.hex()[:12]} {epoch}/{number}"
        if not tellings:
            result.expect(False, lambda w=where: f"{w}: no frame on record holds it")
            continue
        seed = task_seed(author, epoch, number)
        right = [_earned(group, seed, judge) for _, group in tellings]
        result.expect(all(right), lambda w=where: f"{w}: its rewards are not the verifier's")
    return result


def _earned(group: Group, seed: int, judge: Judge) -> bool:
    texts = [completion.text for completion in group.completions]
    own = judge.judge(TaskRef(group.env, group.level, seed), texts).rewards
    return all(abs(a - b) <= TOLERANCE for a, b in zip(group.rewards, own, strict=True))


def lies_told(evidence: Evidence, told: Told, judge: Judge) -> Result:
    """How often others than the nodes claimed what is not so: without any, the check before this
    one has shown nothing."""
    result = Result("others lied, for nodes to refuse")
    nodes = {author for (author,) in evidence.rows("SELECT author FROM nodes")}
    for (author, epoch, number), tellings in told.groups.items():
        if author not in nodes:
            seed = task_seed(author, epoch, number)
            result.checked += not all(_earned(group, seed, judge) for _, group in tellings)
    if not result.checked:
        result.violations.append("nobody did: run it for longer")
    return result


def nothing_twice(evidence: Evidence, uses: int = 1) -> Result:
    """No group, own or from outside, was in more updates of a node than it may be."""
    result = Result("nothing was trained on twice")
    result.checked = evidence.rows("SELECT count(*) FROM uses")[0][0]
    query = (
        "SELECT node, author, epoch, number, count(*) FROM uses "
        "GROUP BY node, author, epoch, number HAVING count(*)>?"
    )
    for node, author, epoch, number, times in evidence.rows(query, (uses,)):
        whose = author.hex()[:12] or "own"
        result.violations.append(f"{node} used {whose} {epoch}/{number} {times} times")
    return result


def draws_told_once(told: Told) -> Result:
    """No draw stands in two frames, or in one frame under two contents."""
    result = Result("no draw was told twice")
    for (author, epoch, number), tellings in told.groups.items():
        contents = {sha256(encode_group(group)).digest() for _, group in tellings}
        same = len(tellings) == 1
        where = f"{author.hex()[:12]} {epoch}/{number}"
        what = f"{len(tellings)} frames, {len(contents)} contents"
        result.expect(same, lambda w=where, x=what: f"{w}: in {x}")
    return result


def sequences_used_once(evidence: Evidence, told: Told) -> Result:
    """No sequence number of an author stands in two things, announcements and frames together."""
    bearers: dict[tuple[bytes, int], set[bytes]] = defaultdict(set)
    for author, sequence, digest in evidence.rows(
        "SELECT author, sequence, digest FROM announcements"
    ):
        bearers[author, sequence].add(digest)
    for name, (author, batch) in told.batches.items():
        bearers[author, batch.sequence].add(name)
    result = Result("no sequence number was used twice")
    for (author, sequence), what in bearers.items():
        where = f"{author.hex()[:12]} number {sequence}"
        result.expect(len(what) == 1, lambda w=where, x=what: f"{w}: in {len(x)} things")
    return result


def offers_held(evidence: Evidence) -> Result:
    """Whatever a node announced lies in its outbox, served while it lives, found when it died."""
    result = Result("nothing announced is missing at its author")
    nodes = dict(evidence.rows("SELECT author, name FROM nodes"))
    query = (
        "SELECT author, content_id, EXISTS (SELECT 1 FROM frames f "
        "WHERE f.content_id=offers.content_id) FROM offers"
    )
    for author, name, seen in evidence.rows(query):
        if author in nodes:
            where = f"{nodes[author]}: frame {name.hex()[:12]}"
            result.expect(bool(seen), lambda w=where: f"{w} was offered and never seen")
    for author, name in evidence.rows(
        "SELECT author, content_id FROM pulls WHERE outcome='not_found'"
    ):
        where = nodes.get(author, author.hex()[:12])
        result.expect(False, lambda w=where, n=name: f"{w} did not have {n.hex()[:12]}")
    lives = "SELECT node, life, author, began, ended FROM lives JOIN nodes ON name=node"
    for node, life, author, began, ended in evidence.rows(lives):
        query = "SELECT content_id FROM offers WHERE author=? AND heard BETWEEN max(?, ?) AND ?"
        lately = evidence.rows(query, (author, began, ended - LATELY, ended))
        held = evidence.rows("SELECT content_id FROM held WHERE node=? AND life=?", (node, life))
        for row in lately:
            where = f"{node} at the end of life {life}: frame {row[0].hex()[:12]}"
            result.expect(row in held, lambda w=where: f"{w} is lost")
    return result


def numbers_kept(evidence: Evidence, told: Told) -> Result:
    """A dead node's journal knows every number and draw that had left the node."""
    result = Result("a killed node remembers its numbers")
    lives = "SELECT node, life, author, ended, sequence FROM lives JOIN nodes ON name=node"
    for node, life, author, ended, last in evidence.rows(lives):
        query = "SELECT max(sequence) FROM announcements WHERE author=? AND heard<?"
        heard = evidence.rows(query, (author, ended))[0][0]
        where = f"{node} at the end of life {life}"
        result.expect(
            heard is None or heard <= last,
            lambda w=where, h=heard, n=last: f"{w}: {h} was heard, the journal knows {n}",
        )
        drawn = dict(
            evidence.rows("SELECT epoch, next FROM drawn WHERE node=? AND life=?", (node, life))
        )
        for (name,) in evidence.rows(
            "SELECT content_id FROM held WHERE node=? AND life=?", (node, life)
        ):
            if name not in told.batches:
                continue
            batch = told.batches[name][1]
            ahead = batch.sequence > last or any(
                group.index >= drawn.get(group.epoch, group.index + 1) for group in batch.groups
            )
            result.expect(not ahead, lambda w=where: f"{w}: a frame is ahead of the journal")
    return result


def goes_on(evidence: Evidence, records: Mapping[str, Sequence[tuple[int, int]]]) -> list[Result]:
    """Each life goes on from the last checkpoint, and its policy only ever goes forward.

    Args:
        records: of each node, (round, policy step) of every line that it wrote, in their order.
    """
    resumed, forward = Result("a killed node goes on"), Result("the policy's step only grows")
    lives = (
        "SELECT life, how, records, checkpoint_round, checkpoint_step FROM lives "
        "WHERE node=? ORDER BY life"
    )
    for node, lines in records.items():
        begin, since = 0, (0, 0)
        ends = evidence.rows(lives, (node,))
        for life, _, end, *checkpoint in ends:
            mine = lines[begin:end]
            if mine:
                where, first, told = f"{node}, life {life}", mine[0], since
                right = first[0] == told[0] + 1 and first[1] >= told[1]
                resumed.expect(right, lambda w=where, f=first, t=told: f"{w}: began at {f} on {t}")
            for before, after in pairwise(mine):
                rises = after[0] == before[0] + 1 and after[1] >= before[1]
                forward.expect(rises, lambda w=node, b=before, a=after: f"{w}: {a} followed {b}")
            begin, since = end, (checkpoint[0], checkpoint[1])
        done = bool(ends) and len(ends) > 0 and ends[-1][1] == "stopped"
        back = done and len(lines) > (ends[-2][2] if len(ends) > 1 else 0)
        resumed.expect(back, lambda w=node: f"{w}: its last life did no round")
    return [resumed, forward]


def ends_and_journals(evidence: Evidence) -> list[Result]:
    """Nothing ended a node but what was meant to, and every journal it left is sound."""
    ends, sound = Result("no node ended by itself"), Result("every journal is sound")
    for node, life, how, status, found in evidence.rows(
        "SELECT node, life, how, status, sound FROM lives"
    ):
        where = f"{node}, life {life}"
        ends.expect(how in EXPECTED_ENDS, lambda w=where, h=how, s=status: f"{w}: {h} ({s})")
        sound.expect(found == "ok", lambda w=where, f=found: f"{w}: {f}")
    uses = defaultdict(list)
    for node, last in evidence.rows("SELECT node, last_use FROM lives ORDER BY node, life"):
        uses[node].append(last)
    for node, numbers in uses.items():
        kept = numbers == sorted(numbers)
        sound.expect(kept, lambda n=node: f"{n}: its journal forgot uses")
    return [ends, sound]


def heals_in_time(evidence: Evidence, manifest: Manifest, epochs: float = 2.0) -> Result:
    """After a partition groups from the other side come in again within so many epochs, and the
    longest that the node had waited for such before: a busy machine makes everybody slower."""
    result = Result(f"a partition heals within {epochs:g} epochs")
    for node, seconds, usual in evidence.rows("SELECT node, seconds, usual FROM heals"):
        took = "not at all" if seconds is None else f"{seconds:.1f} s"
        in_time = seconds is not None and seconds <= epochs * manifest.epoch_seconds + usual
        result.expect(in_time, lambda n=node, t=took, u=usual: f"{n}: {t}, usual up to {u:.1f} s")
    return result


def all_results(
    evidence: Evidence,
    signed: bytes,
    judge: Judge,
    records: Mapping[str, Sequence[tuple[int, int]]],
) -> Iterable[Result]:
    """Every invariant of what was said, drawn, used and lived through."""
    told, whole = read_frames(evidence, signed)
    yield whole
    yield only_verified(evidence, told, judge)
    yield lies_told(evidence, told, judge)
    yield nothing_twice(evidence)
    yield draws_told_once(told)
    yield sequences_used_once(evidence, told)
    yield offers_held(evidence)
    yield numbers_kept(evidence, told)
    yield from goes_on(evidence, records)
    yield from ends_and_journals(evidence)
    yield heals_in_time(evidence, open_manifest(signed))
