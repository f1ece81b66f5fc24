"""A real node among hostile peers, over real daemons: each does a harm, and none of it is learned.

What the node may have learned from is worked out from the frames that were served, and compared
with what its journal says it did.
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
"""Charged to their author too, as it is he who serves."""

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def charged_as_due(attack: Attack, target: NodeView) -> None:
    reputation = target.reputation(attack.peer.author)
    if attack.behaviour.penalties is not None:
        assert reputation.charged == attack.behaviour.refused
        # They fade while a busy machine takes its time from one to the next.
        assert reputation.penalties == pytest.approx(attack.behaviour.penalties, abs=0.4)


def test_a_liar_is_refused_and_charged_and_the_honest_peer_is_learned_from(tmp_path: Path) -> None:
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
        met = len(state.node.records())
        poll(state.node, lambda: len(state.node.records()) >= met + ROUNDS_AFTERWARDS)
        unnoticed = tuple(state.unnoticed())
        status = state.node.stop(signal.SIGTERM)
        rounds = len(state.node.records())
        learned = Recomputation(state.terms, state.served)
        yield Aftermath(state, status, unnoticed, charged, rounds, learned)


def test_the_hostile_peers_did_what_they_wanted_and_nothing_of_it_was_run_or_learned(aftermath):
    state = aftermath.siege
    assert state.failures == []
    assert len(state.attacks) == len(BEHAVIOURS)
    assert aftermath.recomputed.faults(state.world.target) == []
    assert state.used(state.attacks["fred"].peer.author) == 0, "his groups teach nothing"
    assert not OWNED.exists(), "an answer was run"


@pytest.mark.parametrize("kind", BEHAVIOURS, ids=lambda kind: kind.__name__.lower())
def test_each_harm_is_refused_by_name_and_charged_to_its_author(aftermath, kind):
    name = kind.__name__.lower()
    attack = aftermath.siege.attacks[name]
    target = aftermath.siege.world.target
    reputation = target.reputation(attack.peer.author)
    assert name not in aftermath.unnoticed, (reputation, target.counters())
    charged_as_due(attack, target)
    assert reputation.barred == (name in BARRED)


def test_an_honest_author_is_learned_from_all_the_while_and_never_blamed(aftermath):
    state = aftermath.siege
    honest = state.world.honest.author
    reputation = state.world.target.reputation(honest)
    assert state.used(honest) > 0
    assert (reputation.penalties, reputation.charged) == (0.0, {})
    assert honest in aftermath.recomputed.authors()


def test_of_forgers_nothing_is_learned_nor_looked_at_any_more(aftermath: Aftermath) -> None:
    state = aftermath.siege
    for name in BARRED:
        author = state.attacks[name].peer.author
        assert author in aftermath.recomputed.forgers
        assert state.used(author) == 0
    mallory = state.attacks["mallory"].peer
    assert len(mallory.offers) == 2, "she did not go on with an honest frame"
    assert {s.frame for s in state.served if s.author == mallory.author} == {
        mallory.frames[mallory.offers[0].content_id]
    }


def test_the_node_lives_and_learns_on(aftermath: Aftermath) -> None:
    state = aftermath.siege
    records = state.node.records()
    assert aftermath.rounds >= state.rounds + ROUNDS_AFTERWARDS
    assert [r.round for r in records] == list(range(1, aftermath.rounds + 1))
    failed = ("rounds_failed", "member_failures", "member_stopped", "daemon_restarts")
    assert {name: state.world.target.count(name) for name in failed} == dict.fromkeys(failed, 0)
    figures = [r.grad_norm for r in records if r.groups_external]
    assert figures
    assert all(norm is not None and math.isfinite(norm) for norm in figures)
    assert aftermath.status == 0
    assert state.node.left == []


def test_every_refusal_is_counted_under_its_reason(aftermath: Aftermath) -> None:
    state = aftermath.siege
    charged = charges(state.world.target)
    assert set(charged) <= set(PENALTIES)
    counted = Counter(state.node.records()[-1].refused)
    for name, n in state.world.target.counters().items():
        if found := BY_STREAM.fullmatch(name):
            counted[found[1]] += n
    # The last record is older than the journal, and younger than what was charged before.
    assert aftermath.charged <= counted <= charged


def test_nothing_of_theirs_reaches_the_terminal_or_the_log(aftermath: Aftermath) -> None:
    node = aftermath.siege.node
    assert node.odd_log_lines() == []
    shown = "\n".join([*node.out, *node.err, node.run.log.read_text()])
    assert CONTROL.findall(shown) == []
    assert "owned" not in shown
    assert "Traceback" not in shown
