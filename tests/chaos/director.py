"""Executes the plan, restarts nodes that end, and measures how cut networks heal."""

import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.chaos.crew import ChaosNode
from tests.chaos.evidence import Evidence, admitted_from, autopsy, beside
from tests.chaos.launcher import NETWORK
from tests.chaos.plan import HEALING, SETTLING, Event
from tests.chaos.world import World

LOOK_SECONDS = 0.5
LONGEST_SECONDS = 2 * HEALING
"""Seconds after which a node has not healed; both sides have a node that works."""


class Healing:
    """Count the groups each node admits from the other side, before and after a cut.

    The time until the first group arrives after a heal also depends on the machine, and no node has
    a new group at every moment. The longest wait of each node while the network was whole is
    therefore recorded beside its wait after the heal. A wait counts only while the node and a node
    on the other side can work, and only after the node's first group from there: that group comes
    late because the node has just started. A node that starts during a cut is not watched, because
    its wait would measure a start and not a heal.
    ``able`` returns whether a node works undisturbed.
    """

    def __init__(
        self,
        nodes: Sequence[ChaosNode],
        authors: Sequence[bytes],
        evidence: Evidence,
        able: Callable[[ChaosNode], bool],
        say: Callable[[str], None],
    ) -> None:
        self._nodes, self._cut, self._looked = nodes, False, time.monotonic()
        self._beyond = {
            node.name: [a for n, a in zip(nodes, authors, strict=True) if n.side != node.side]
            for node in nodes
        }
        self._evidence, self._able, self._say = evidence, able, say
        self._waits: dict[str, tuple[int, float | None]] = {}
        self._usual: dict[str, float] = {}
        self._watched: set[str] = set()

    @property
    def known(self) -> frozenset[str]:
        return frozenset(self._usual)

    @property
    def met(self) -> bool:
        """Whether on each side a node has had groups from the other since it started."""
        return len({node.side for node in self._nodes if self._waiting(node.name)}) == 2

    @property
    def watching(self) -> bool:
        return bool(self._watched)

    @property
    def over(self) -> bool:
        return not self._cut and not self._watched

    def cut(self) -> None:
        self._cut = True

    def healed(self) -> int:
        self._forget_hindered()
        known = [node for node in self._nodes if node.name in self._usual]
        judged = [node for node in known if self.met and self._waiting(node.name)]
        counts = {node.name: self._count(node) for node in judged}
        self._waits = {name: (count, 0.0) for name, count in counts.items() if count is not None}
        self._watched, self._cut = set(self._waits), False
        self._looked = time.monotonic()
        return len(self._watched)

    def look(self) -> None:
        self._forget_hindered()
        passed = time.monotonic() - self._looked
        if self._cut or passed < LOOK_SECONDS:
            return
        self._looked += passed
        able = [node for node in self._nodes if self._able(node)]
        if len({node.side for node in able}) == 2:
            for node in able:
                self._wait(node, passed)

    def _forget_hindered(self) -> None:
        for node in self._nodes:
            if not self._able(node):
                self._waits.pop(node.name, None)
                self._watched.discard(node.name)

    def _waiting(self, name: str) -> bool:
        return self._waits.get(name, (0, None))[1] is not None

    def _wait(self, node: ChaosNode, passed: float) -> None:
        count = self._count(node)
        if count is None:
            return
        before, waited = self._waits.get(node.name, (count, None))
        came, waited = count > before, None if waited is None else waited + passed
        self._waits[node.name] = (count, 0.0 if came else waited)
        if waited is None:
            return
        if node.name in self._watched:
            if came or waited > LONGEST_SECONDS:
                self._settle(node.name, waited if came else None)
        elif came:
            self._usual[node.name] = max(waited, self._usual.get(node.name, 0.0))

    def _settle(self, name: str, took: float | None) -> None:
        self._watched.discard(name)
        usual = self._usual[name]
        self._evidence.add("heals", (time.time(), name, took, usual))
        told = "nothing came" if took is None else f"groups came after {took:.1f} s"
        self._say(f"{name}: {told}, after at most {usual:.1f} s before")

    def _count(self, node: ChaosNode) -> int | None:
        with suppress(sqlite3.Error), beside(node.run_folder) as journal:
            return admitted_from(journal, self._beyond[node.name])
        return None


TICK = 0.1
RETRY_SECONDS = 3.0
"""Seconds until a node whose shifted clock prevented its start is restarted."""
POSTPONED_SECONDS, MOST_TRIES = 10.0, 6
"""Delay of an event that finds no suitable node, and maximum number of delays.
Without the maximum, a slow machine loses each node once it is up. The last kill may come sooner."""
FILLER = "filler"
FULL_DISK = ("no space left", "disk is full", "ree some space")
"""Parts of the last message of a node whose disk is full; capitals vary."""
PRIVILEGED = ("disk", "partition")
"""Events that need namespaces."""
ELSEWHERE = {"daemon": "p2pd", "network": NETWORK, "verifier": "node.tasks.verifier.worker"}


class Director:
    """Run events in order of time; schedule the end of each that lasts."""

    def __init__(
        self,
        world: World,
        nodes: Sequence[ChaosNode],
        authors: Sequence[bytes],
        evidence: Evidence,
        say: Callable[[str], None],
    ) -> None:
        self._world, self._nodes, self._evidence, self._say = world, nodes, evidence, say
        self._healing = Healing(nodes, authors, evidence, self._able, self._log)
        self._started = time.monotonic()
        self._owed: list[tuple[float, Callable[[], None]]] = []
        self._full: set[str] = set()
        self._postponed: list[Event] = []
        self._again: dict[str, float] = {}
        self._clocks_right_since = 0.0
        self._quiet_since, self._seconds = math.inf, 0.0

    def run(self, events: Sequence[Event], seconds: float) -> None:
        coming, self._seconds = list(events), seconds
        while coming or self._owed or self._healing.watching or self._now < seconds:
            for event in [each for each in coming if each.at <= self._now]:
                coming.remove(event)
                self._begin(event)
            coming += self._postponed
            self._postponed.clear()
            for due, end in [each for each in self._owed if each[0] <= self._now]:
                self._owed.remove((due, end))
                end()
            self._revive()
            self._healing.look()
            if self._healing.over:
                self._quiet_since = math.inf
            time.sleep(TICK)

    def finish(self, patience: float) -> None:
        """Wait for all nodes, stop each as its user would, and examine what it leaves."""
        deadline = self._now + patience
        while self._now < deadline and not all(node.at_work for node in self._nodes):
            self._revive()
            time.sleep(TICK)
        for node in self._nodes:
            node.interrupt()
        for node in self._nodes:
            status = node.wait(patience)
            if status is None:
                node.kill()
            how = {0: "stopped", None: "did not stop"}.get(status, "failed on stopping")
            self._bury(node, how, status)

    @property
    def _now(self) -> float:
        return time.monotonic() - self._started

    def _begin(self, event: Event) -> None:
        if event.kind == "kill" and self._last_try(event):
            event = replace(event, kind="young")
        node = self._target(event)
        cuttable = event.kind == "partition" and self._healing.over and self._healing.met
        if event.kind in PRIVILEGED and not self._world.whole:
            outcome = "not possible here"
        elif self._quiet or not (node or cuttable):
            if self._postpone(event):
                return
            outcome = "skipped: nobody to hurt so"
        else:
            outcome = getattr(self, f"_{event.kind}")(event, node)
        name = node.name if node else ""
        self._log(f"{event.kind:9} {name:7} {event.detail}: {outcome}")
        self._evidence.add("events", (time.time(), event.kind, name, event.detail, outcome))

    def _target(self, event: Event) -> ChaosNode | None:
        """Return the drawn node, or the next one in a state that suits the event."""
        if event.kind == "partition":
            return None
        order = [*self._nodes[event.node :], *self._nodes[: event.node]]
        for node in order[:1] if event.kind == "disk" else order:
            busy = node.status is not None or node.stopped or node.name in self._full
            busy = busy or (event.kind == "clock" and node.shift)
            if not busy and node.at_work == (event.kind != "young"):
                return node
        return None

    @property
    def _quiet(self) -> bool:
        return self._now >= self._quiet_since

    def _postpone(self, event: Event) -> bool:
        """Postpone an event if tries are left; a try in the quiet time does not count."""
        if self._last_try(event):
            return False
        tries = event.tries + (not self._quiet)
        self._postponed.append(replace(event, at=self._now + POSTPONED_SECONDS, tries=tries))
        return True

    def _last_try(self, event: Event) -> bool:
        late = self._now >= self._seconds and event.kind != "partition"
        return late or event.tries >= MOST_TRIES

    def _able(self, node: ChaosNode) -> bool:
        hindered = node.stopped or node.shift or node.name in self._full
        return not hindered and node.at_work

    def _log(self, line: str) -> None:
        self._say(f"{self._now:7.1f} s  {line}")

    def _owe(self, seconds: float, end: Callable[[], None]) -> None:
        self._owed.append((self._now + seconds, end))

    def _kill(self, event: Event, node: ChaosNode) -> str:
        node.kill()
        self._bury(node, "killed", None)
        node.start()
        return "done"

    _young = _kill

    def _pause(self, event: Event, node: ChaosNode, whole: bool = False) -> str:
        life = node.life
        node.stop(whole)

        def end() -> None:
            if node.life == life and node.status is None:
                node.go_on(whole)

        self._owe(event.seconds, end)
        return "done"

    def _suspend(self, event: Event, node: ChaosNode) -> str:
        return self._pause(event, node, whole=True)

    def _daemon(self, event: Event, node: ChaosNode) -> str:
        return "done" if node.kill_child(ELSEWHERE[event.kind]) else "skipped: it has none"

    _network = _verifier = _daemon

    def _clock(self, event: Event, node: ChaosNode) -> str:
        node.set_clock(event.shift)

        def end() -> None:
            node.set_clock(0.0)
            self._clocks_right_since = time.time()

        self._owe(event.seconds, end)
        return "done"

    def _disk(self, event: Event, node: ChaosNode) -> str:
        self._full.add(node.name)
        fill(node.run_folder / FILLER)

        def free() -> None:
            if node.status is None and not node.stopped:
                self._log(f"{node.name} has not ended yet, its disk is freed")
            (node.run_folder / FILLER).unlink(missing_ok=True)
            self._full.discard(node.name)

        self._owe(event.seconds, free)
        return "done"

    def _partition(self, event: Event, node: None) -> str:
        self._healing.cut()
        self._world.cut()
        self._quiet_since = self._now + event.seconds - SETTLING

        def heal() -> None:
            self._world.heal()
            self._log(f"healed; {self._healing.healed()} nodes are watched")

        self._owe(event.seconds, heal)
        return "done"

    def _revive(self) -> None:
        """Restart nodes that ended by themselves; the cause goes into the evidence."""
        for node in self._nodes:
            if node.status is None or node.name in self._full:
                continue
            if node.name not in self._again:
                self._again[node.name] = self._now + RETRY_SECONDS
                self._bury(node, self._cause(node), node.status)
            elif self._again[node.name] <= self._now:
                del self._again[node.name]
                node.start()

    def _cause(self, node: ChaosNode) -> str:
        words = node.last_words
        # The clock may have been corrected after the node checked it and before the node ended.
        shifted = any(n.shift for n in self._nodes) or self._clocks_right_since >= node.began
        if "s apart, more than" in words and shifted:
            return "refused: clock"
        if node.status == 1 and any(said in words for said in FULL_DISK):
            return "disk full"
        return f"ended: {words}"

    def _bury(self, node: ChaosNode, how: str, status: int | None) -> None:
        remains = autopsy(node.run_folder)
        life = (node.name, node.life, node.began, time.time(), how, status)
        left = (remains.sequence, remains.last_use, remains.records, *remains.checkpoint)
        self._evidence.add("lives", (*life, *left, remains.sound))
        self._evidence.add("held", *((node.name, node.life, name) for name in remains.frames))
        self._evidence.add("drawn", *((node.name, node.life, *draw) for draw in remains.drawn))


def fill(path: Path) -> None:
    for size in (1 << 16, 1):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(size))
