"""Check from the evidence alone whether a run kept what a node promises.

Rewards are recomputed from the frames that authors served and that other peers received.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from statistics import median

from protocol.announcement import task_seed
from protocol.errors import ProtocolError
from protocol.frame import open_frame
from protocol.manifest import Manifest, open_manifest, swarm_id
from protocol.rollout import Batch, Group, encode_group
from swarm.groups import TaskRef
from swarm.verification import GroupVerifier
from tests.chaos.evidence import Evidence

TOLERANCE = 1e-3
LATELY = 20.0
"""Seconds before a death; their offers must still be held."""
EXPECTED_ENDS = ("killed", "stopped", "disk full", "refused: clock")
SETTLED_SECONDS = 20.0
"""Seconds of work after which a node has started all of its processes and threads."""
LARGEST_GROWTH = {
    "memory": (1.25, 0.0),
    "fds": (1.1, 8.0),
    "sockets": (1.1, 8.0),
    "threads": (1.1, 4.0),
}
"""Allowed growth of a node's median, first to last third: factor and offset."""
MOST_LOST_SOCKETS = 40
"""Sockets left by killed daemons: each start removes those that are a minute old."""
MOST_TEMPORARY = 64
"""Other entries of /tmp, over all processes of a run."""

Key = tuple[bytes, int, int]
Records = Mapping[str, Sequence[tuple[int, int]]]
"""Per node: (round, policy step) of every line that it wrote, in order."""


@dataclass(slots=True)
class Result:
    """One invariant: how often it was checked, and its violations."""

    name: str
    checked: int = 0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: str) -> None:
        self.checked += 1
        if not holds:
            self.violations.append(otherwise)


@dataclass(slots=True)
class Told:
    """Each frame's batch, and every version of each task sample in the frames."""

    batches: dict[bytes, tuple[bytes, Batch]] = field(default_factory=dict)
    groups: dict[Key, list[tuple[bytes, Group]]] = field(default_factory=lambda: defaultdict(list))


def read_frames(evidence: Evidence, signed: bytes) -> tuple[Told, Result]:
    manifest, swarm = open_manifest(signed), swarm_id(signed)
    told, result = Told(), Result("frames are signed and whole")
    for name, frame in evidence.rows("SELECT content_id, frame FROM frames"):
        try:
            opened = open_frame(frame, swarm, manifest)
        except ProtocolError as error:
            result.expect(False, f"frame {name.hex()[:12]}: {error}")
            continue
        result.expect(opened.content_id == name, f"frame {name.hex()[:12]}: misnamed")
        told.batches[name] = (opened.author, opened.batch)
        for group in opened.batch.groups:
            told.groups[opened.author, group.epoch, group.index].append((name, group))
    return told, result


def only_verified(evidence: Evidence, told: Told, verifier: GroupVerifier) -> Result:
    result = Result("nothing unverified was trained on")
    query = "SELECT DISTINCT author, epoch, number FROM uses WHERE author!=x''"
    for key in evidence.rows(query):
        tellings = told.groups.get(key)
        if not tellings:
            result.expect(False, f"{_draw(key)}: no frame on record holds it")
            continue
        right = [_earned(group, task_seed(*key), verifier) for _, group in tellings]
        result.expect(all(right), f"{_draw(key)}: its rewards are not the verifier's")
    return result


def _draw(key: Key) -> str:
    return f"{key[0].hex()[:12]} {key[1]}/{key[2]}"


def _earned(group: Group, seed: int, verifier: GroupVerifier) -> bool:
    texts = [completion.text for completion in group.completions]
    own = verifier.verify(TaskRef(group.env, group.level, seed), texts).rewards
    return all(abs(a - b) <= TOLERANCE for a, b in zip(group.rewards, own, strict=True))


def lies_told(evidence: Evidence, told: Told, verifier: GroupVerifier) -> Result:
    """Count false claims by peers other than the nodes.
    Without a false claim, the check before this one shows nothing."""
    result = Result("others lied, for nodes to refuse")
    nodes = {author for (author,) in evidence.rows("SELECT author FROM nodes")}
    for key, tellings in told.groups.items():
        if key[0] not in nodes:
            right = [_earned(group, task_seed(*key), verifier) for _, group in tellings]
            result.checked += not all(right)
    if not result.checked:
        result.violations.append("nobody did: run it for longer")
    return result


def nothing_twice(evidence: Evidence, uses: int = 1) -> Result:
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
    result = Result("no draw was told twice")
    for key, tellings in told.groups.items():
        contents = {sha256(encode_group(group)).digest() for _, group in tellings}
        what = f"in {len(tellings)} frames, {len(contents)} contents"
        result.expect(len(tellings) == 1, f"{_draw(key)}: {what}")
    return result


def sequences_used_once(evidence: Evidence, told: Told) -> Result:
    """Check that no author uses a sequence number for two announcements or frames."""
    result = Result("no sequence number was used twice")
    bearers: dict[tuple[bytes, int], set[bytes]] = defaultdict(set)
    query = "SELECT author, sequence, digest FROM announcements"
    for author, sequence, digest in evidence.rows(query):
        bearers[author, sequence].add(digest)
    for name, (author, batch) in told.batches.items():
        bearers[author, batch.sequence].add(name)
    for (author, sequence), what in bearers.items():
        where = f"{author.hex()[:12]} number {sequence}"
        result.expect(len(what) == 1, f"{where}: in {len(what)} things")
    return result


def offers_held(evidence: Evidence) -> Result:
    """Check that a node holds all frames it announced, also when it dies."""
    result = Result("nothing announced is missing at its author")
    nodes = dict(evidence.rows("SELECT author, name FROM nodes"))
    query = (
        "SELECT author, content_id, EXISTS (SELECT 1 FROM frames f "
        "WHERE f.content_id=offers.content_id) FROM offers"
    )
    for author, name, seen in evidence.rows(query):
        if author in nodes:
            where = f"{nodes[author]}: frame {name.hex()[:12]}"
            result.expect(bool(seen), f"{where} was offered and never seen")
    query = "SELECT author, content_id FROM pulls WHERE outcome='not_found'"
    for author, name in evidence.rows(query):
        who = nodes.get(author, author.hex()[:12])
        result.expect(False, f"{who} did not have {name.hex()[:12]}")
    lives = "SELECT node, life, author, began, ended FROM lives JOIN nodes ON name=node"
    for node, life, author, began, ended in evidence.rows(lives):
        query = "SELECT content_id FROM offers WHERE author=? AND heard BETWEEN max(?, ?) AND ?"
        held = evidence.rows("SELECT content_id FROM held WHERE node=? AND life=?", (node, life))
        for row in evidence.rows(query, (author, began, ended - LATELY, ended)):
            where = f"{node} at the end of life {life}"
            result.expect(row in held, f"{where}: frame {row[0].hex()[:12]} is lost")
    return result


def numbers_kept(evidence: Evidence, told: Told) -> Result:
    result = Result("a killed node remembers its numbers")
    lives = "SELECT node, life, author, ended, sequence FROM lives JOIN nodes ON name=node"
    for node, life, author, ended, last in evidence.rows(lives):
        query = "SELECT max(sequence) FROM announcements WHERE author=? AND heard<?"
        heard = evidence.rows(query, (author, ended))[0][0]
        where, which = f"{node} at the end of life {life}", (node, life)
        known = heard is None or heard <= last
        result.expect(known, f"{where}: {heard} was heard, the journal knows {last}")
        drawn = dict(evidence.rows("SELECT epoch, next FROM drawn WHERE node=? AND life=?", which))
        query = "SELECT content_id FROM held WHERE node=? AND life=?"
        for name in told.batches.keys() & {row[0] for row in evidence.rows(query, which)}:
            batch = told.batches[name][1]
            ahead = batch.sequence > last or any(
                group.index >= drawn.get(group.epoch, group.index + 1) for group in batch.groups
            )
            result.expect(not ahead, f"{where}: a frame is ahead of the journal")
    return result


def goes_on(evidence: Evidence, records: Records) -> list[Result]:
    """Check that each life resumes from the last checkpoint and steps never decrease."""
    resumed, forward = Result("a killed node goes on"), Result("the policy's step only grows")
    told = "life, how, records, checkpoint_round, checkpoint_step"
    lives = f"SELECT {told} FROM lives WHERE node=? ORDER BY life"
    for node, lines in records.items():
        begin, since = 0, (0, 0)
        ends = evidence.rows(lives, (node,))
        for life, _, end, *checkpoint in ends:
            mine = lines[begin:end]
            if mine:
                right = mine[0][0] == since[0] + 1 and mine[0][1] >= since[1]
                resumed.expect(right, f"{node}, life {life}: began at {mine[0]} on {since}")
            for before, after in pairwise(mine):
                rises = after[0] == before[0] + 1 and after[1] >= before[1]
                forward.expect(rises, f"{node}: {after} followed {before}")
            begin, since = end, (checkpoint[0], checkpoint[1])
        done = bool(ends) and ends[-1][1] == "stopped"
        back = done and len(lines) > (ends[-2][2] if len(ends) > 1 else 0)
        resumed.expect(back, f"{node}: its last life did no round")
    return [resumed, forward]


def ends_and_journals(evidence: Evidence) -> list[Result]:
    ends, sound = Result("no node ended by itself"), Result("every journal is sound")
    uses = defaultdict(list)
    query = "SELECT node, life, how, status, sound, last_use FROM lives ORDER BY node, life"
    for node, life, how, status, found, last in evidence.rows(query):
        ends.expect(how in EXPECTED_ENDS, f"{node}, life {life}: {how} ({status})")
        sound.expect(found == "ok", f"{node}, life {life}: {found}")
        uses[node].append(last)
    for node, numbers in uses.items():
        sound.expect(numbers == sorted(numbers), f"{node}: its journal forgot uses")
    return [ends, sound]


def heals_in_time(evidence: Evidence, manifest: Manifest, epochs: float = 2.0) -> Result:
    """Check that groups from the other side return soon after a partition.
    The limit is ``epochs`` plus the node's longest wait before, which allows for a busy machine."""
    result = Result(f"a partition heals within {epochs:g} epochs")
    for node, seconds, usual in evidence.rows("SELECT node, seconds, usual FROM heals"):
        took = "not at all" if seconds is None else f"{seconds:.1f} s"
        in_time = seconds is not None and seconds <= epochs * manifest.epoch_seconds + usual
        result.expect(in_time, f"{node}: {took}, usual up to {usual:.1f} s")
    return result


def all_results(
    evidence: Evidence, signed: bytes, verifier: GroupVerifier, records: Records
) -> Iterable[Result]:
    told, whole = read_frames(evidence, signed)
    yield whole
    yield only_verified(evidence, told, verifier)
    yield lies_told(evidence, told, verifier)
    yield nothing_twice(evidence)
    yield draws_told_once(told)
    yield sequences_used_once(evidence, told)
    yield offers_held(evidence)
    yield numbers_kept(evidence, told)
    yield from goes_on(evidence, records)
    yield from ends_and_journals(evidence)
    yield heals_in_time(evidence, open_manifest(signed))


def flat(evidence: Evidence) -> Iterable[Result]:
    """Return one result for each resource that must not grow."""
    for figure, (factor, summand) in LARGEST_GROWTH.items():
        rows = evidence.rows(f"SELECT at, {figure} FROM samples WHERE age>?", (SETTLED_SECONDS,))
        result = Result(f"{figure} flat")
        if rows:
            first, last = thirds(*zip(*rows, strict=True))
            grown = f"{figure} of a node: {first:.0f} at first, {last:.0f} at last"
            result.expect(last <= factor * first + summand, grown)
            result.checked = len(rows)
        else:
            result.expect(False, f"{figure}: nothing was sampled")
        yield result
    names = ("unix sockets flat", "no process is lost", "temporary files flat")
    sockets, lost, temporary = map(Result, names)
    for _, stray, total, daemons, other in evidence.rows("SELECT * FROM machine"):
        left = total - 2 * daemons
        sockets.expect(left <= MOST_LOST_SOCKETS, f"{left} sockets of no daemon")
        lost.expect(stray == 0, f"{stray} processes belong to no node")
        temporary.expect(other <= MOST_TEMPORARY, f"{other} entries in /tmp")
    yield from (sockets, lost, temporary)


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the median slope over all pairs of points (Theil-Sen), per unit of time.

    Up to 29 % of the points may be outliers. Returns 0 for fewer than two times.
    """
    points = sorted(zip(times, values, strict=True))
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(points)
        for later in points[place + 1 :]
        if later[0] > earlier[0]
    ]
    return median(slopes or [0.0])


def thirds(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the values in the first and in the last third of the time."""
    if not values:
        raise ValueError("nothing was sampled: run it for longer")
    begin, end = min(times), max(times)
    third = (end - begin) / 3
    first = [v for t, v in zip(times, values, strict=True) if t <= begin + third]
    last = [v for t, v in zip(times, values, strict=True) if t >= end - third]
    return median(first), median(last)
