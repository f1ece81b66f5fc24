"""A real node among hostile peers, over real daemons, does not train on lies.

The groups that the node may have trained on are recomputed from the served frames. They are then
compared with the node's journal.
"""

import math
import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarm.verification import PENALTIES
from tests.hostile import frames, streams
from tests.hostile.behaviour import Behaviour, NodeView
from tests.hostile.frames import OWNED, Larry
from tests.hostile.recomputation import Recomputation
from tests.hostile.siege import Attack, Siege, poll, siege

pytestmark = pytest.mark.processes

BEHAVIOURS = tuple(
    kind
    for module in (streams, frames)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Behaviour)
    if kind not in (Behaviour, streams.Offering)
)
ROUNDS_AFTERWARDS = 6
BARRED = ("mallory", "wendy", "tom", "carl")
BY_STREAM = re.compile(r"pulls_failed\{reason=(wrong_content|response_too_large|too_slow)\}")
"""Failed pulls that also penalize the author, who serves the frame."""

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def charged_as_due(attack: Attack, target: NodeView) -> None:
    reputation = target.reputation(attack.peer.author)
    if attack.behaviour.penalties is not None:
        assert reputation.charged == attack.behaviour.refused
        # Penalties decay between two charges on a busy machine.
        assert reputation.penalties == pytest.approx(attack.behaviour.penalties, abs=0.4)


def test_node_penalizes_a_liar_and_trains_on_honest_groups(tmp_path: Path) -> None:
    with siege(tmp_path, (Larry,)) as state:
        honest, attack = state.world.honest.author, state.attacks["larry"]
        poll(state.node, lambda: not state.unnoticed() and state.used(honest) > 0)
        assert state.node.stop(signal.SIGTERM) == 0
        assert state.failures == []
        target = state.world.target
        charged_as_due(attack, target)
        assert target.reputation(honest).charged == {}
        learned = Recomputation(state.terms, state.served)
        assert learned.faults(target) == []
        assert honest in learned.authors()


def charges(target: NodeView) -> Counter[str]:
    """Return the refusals of all authors together, by reason."""
    return Counter(dict(target.rows("SELECT reason, sum(n) FROM refusals GROUP BY reason")))


@dataclass(frozen=True)
class Aftermath:
    siege: Siege
    status: int
    unnoticed: tuple[str, ...]
    charged: Counter[str]
    rounds: int
    recomputed: Recomputation


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    with siege(tmp_path_factory.mktemp("siege"), BEHAVIOURS) as state:
        honest = state.world.honest.author
        poll(state.node, lambda: not state.unnoticed() and state.used(honest) > 0)
        charged = charges(state.world.target)
        before = len(state.node.records())
        poll(state.node, lambda: len(state.node.records()) >= before + ROUNDS_AFTERWARDS)
        unnoticed = tuple(state.unnoticed())
        status = state.node.stop(signal.SIGTERM)
        rounds = len(state.node.records())
        learned = Recomputation(state.terms, state.served)
        yield Aftermath(state, status, unnoticed, charged, rounds, learned)


def test_node_neither_executes_nor_trains_on_hostile_input(aftermath):
    state = aftermath.siege
    assert state.failures == []
    assert len(state.attacks) == len(BEHAVIOURS)
    assert aftermath.recomputed.faults(state.world.target) == []
    assert state.used(state.attacks["fred"].peer.author) == 0, "fred's groups are not informative"
    assert not OWNED.exists(), "an answer was executed"


@pytest.mark.parametrize("kind", BEHAVIOURS, ids=lambda kind: kind.__name__.lower())
def test_each_attack_is_named_and_charged_to_its_author(aftermath, kind):
    name = kind.__name__.lower()
    attack = aftermath.siege.attacks[name]
    target = aftermath.siege.world.target
    reputation = target.reputation(attack.peer.author)
    assert name not in aftermath.unnoticed, (reputation, target.counters())
    charged_as_due(attack, target)
    assert reputation.barred == (name in BARRED)


def test_node_trains_on_an_honest_author_without_penalties(aftermath):
    state = aftermath.siege
    honest = state.world.honest.author
    reputation = state.world.target.reputation(honest)
    assert state.used(honest) > 0
    assert (reputation.penalties, reputation.charged) == (0.0, {})
    assert honest in aftermath.recomputed.authors()


def test_node_ignores_all_later_frames_from_forgers(aftermath: Aftermath) -> None:
    state = aftermath.siege
    for name in BARRED:
        author = state.attacks[name].peer.author
        assert author in aftermath.recomputed.forgers
        assert state.used(author) == 0
    mallory = state.attacks["mallory"].peer
    assert len(mallory.offers) == 2, "mallory offered no honest frame afterwards"
    assert {s.frame for s in state.served if s.author == mallory.author} == {
        mallory.frames[mallory.offers[0].content_id]
    }


def test_node_continues_training(aftermath: Aftermath) -> None:
    state = aftermath.siege
    records = state.node.records()
    assert aftermath.rounds >= state.rounds + ROUNDS_AFTERWARDS
    assert [r.round for r in records] == list(range(1, aftermath.rounds + 1))
    failed = ("rounds_failed", "member_failures", "member_stopped", "daemon_restarts")
    assert {name: state.world.target.count(name) for name in failed} == dict.fromkeys(failed, 0)
    norms = [r.grad_norm for r in records if r.groups_external]
    assert norms
    assert all(norm is not None and math.isfinite(norm) for norm in norms)
    assert aftermath.status == 0
    assert state.node.left == []


def test_refusals_are_counted_by_reason(aftermath: Aftermath) -> None:
    state = aftermath.siege
    charged = charges(state.world.target)
    assert set(charged) <= set(PENALTIES)
    counted = Counter(state.node.records()[-1].refused)
    for name, n in state.world.target.counters().items():
        if found := BY_STREAM.fullmatch(name):
            counted[found[1]] += n
    # The last record is older than the journal, and newer than ``aftermath.charged``.
    assert aftermath.charged <= counted <= charged


def test_hostile_text_stays_out_of_terminal_and_log(aftermath: Aftermath) -> None:
    node = aftermath.siege.node
    assert node.odd_log_lines() == []
    output = "\n".join([*node.out, *node.err, node.run.log.read_text()])
    assert CONTROL.findall(output) == []
    assert "owned" not in output
    assert "Traceback" not in output
