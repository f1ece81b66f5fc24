"""A real node beside one peer that lies and one that is honest; ``test_real_node`` has them all."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.hostile.liars import Larry
from tests.hostile.recomputation import Recomputation
from tests.hostile.siege import siege

pytestmark = pytest.mark.processes


def test_a_liar_is_refused_and_charged_and_the_honest_peer_is_learned_from(tmp_path: Path) -> None:
    with siege(tmp_path, (Larry,)) as state:
        honest, attack = state.world.honest.author, state.attacks["larry"]
        state.until(lambda: not state.unnoticed() and state.used(honest) > 0)
        assert state.node.stop(signal.SIGTERM) == 0
        assert state.failures == []
        target = state.world.target
        standing = target.standing(attack.peer.author)
        assert standing.refused == attack.behaviour.refused
        assert standing.strikes == pytest.approx(attack.behaviour.strikes, abs=0.1)
        assert target.standing(honest).refused == {}
        learned = Recomputation(state.terms, state.served)
        assert learned.faults(target) == []
        assert honest in learned.authors()
