"""Which rollouts of a round people get to see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from node.monitor.rollouts import LONGEST, ShownRollout, shortened
from node.monitor.transcript import transcript
from node.run.outcome import Outcome
from protocol.identity import peer_id_of
from protocol.rollout import Finish, Group


def shown_rollouts(outcome: Outcome) -> list[ShownRollout]:
    """The worst and the best completion of one own group and of one external group in turn.

    Groups that teach come first, as there the two differ; where all completions of a group have
    the same reward, one stands for them.
    """
    own = sorted(outcome.own, key=lambda group: not group.informative)[:1]
    external = sorted(outcome.external, key=lambda pooled: not pooled.candidate.informative)[:1]
    in_turn = zip_longest(
        *(_ends(outcome.round, g.group, g.prompt, g.training.rewards, None) for g in own),
        *(
            _ends(outcome.round, p.group, p.prompt, p.group.rewards, peer_id_of(p.author))
            for p in external
        ),
    )
    return [rollout for pair in in_turn for rollout in pair if rollout is not None]


def _ends(
    number: int, group: Group, prompt: str, rewards: Sequence[float], author: str | None
) -> Iterator[ShownRollout]:
    places = range(len(rewards))
    worst, best = min(places, key=rewards.__getitem__), max(places, key=rewards.__getitem__)
    for place in dict.fromkeys((worst, best)):
        completion = group.completions[place]
        yield ShownRollout(
            round=number,
            env=group.env,
            level=group.level,
            prompt=shortened(prompt, LONGEST),
            completion=shortened(transcript(completion.segments), LONGEST),
            reward=rewards[place],
            cut=completion.finish is Finish.LENGTH,
            author=author,
        )
