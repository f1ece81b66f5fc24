"""A training loop of real parts with a scripted engine; its calls are recorded."""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace

from experiments.virtual_clock import VirtualClock
from node.config.config import Config
from node.config.learning import MixtureSection
from node.config.sections import ScheduleSection
from node.learner.update_stats import UpdateStats
from node.rollout.groups import GroupLimits, GroupSource, Intake, LocalGroup
from node.run.training_loop import TrainingLoop
from node.run.update_groups import ExternalGroups, Outcome, Rules, TrainedPolicy
from swarm.groups import TaskRef
from swarm.journal import MEMORY, Journal
from swarm.member import Experience
from swarm.mixture import Mixture, Selection, UniformSelection
from swarm.peer_advantage import PeerAdvantage
from swarm.pool import Pool
from swarm.verification import Scores
from tests.node.rollout.overlap_parts import CAP, Parts, Teacher, VirtualEngine, parts
from tests.swarm.experience_parts import START

NEVER = 1 << 30
REWARD = 0.75
"""Result of every evaluation."""


class Half(Teacher):
    """Gives different rewards in every second task, including the first."""

    calls = 0

    def verify(self, task: TaskRef, texts: Sequence[str]) -> Scores:
        self.calls += 1
        teacher = super() if self.calls % 2 else Nothing()
        return teacher.verify(task, texts)


class Nothing(Teacher):
    """Gives every answer the reward 0."""

    def verify(self, task: TaskRef, texts: Sequence[str]) -> Scores:
        return Scores("?", (0.0,) * len(texts))


class Watching(Intake):
    """Records the observed local groups."""

    def observe(self, groups: Sequence[LocalGroup]) -> None:
        self.seen = [group.key for group in groups]
        super().observe(groups)


class Loop:
    """A node's training loop and everything around it.

    Args:
        made: the node, or None for a new one whose verifier is ``teacher``.
        source: source of local groups, or None for the node's synchronous one.

    Attributes:
        calls: calls of the engine, in order.
        evaluated: policy version at each evaluation.
        saved: round and policy version at each checkpoint.
        published: keys of published groups, one list per round.
        reported: receives the outcome of each round.
    """

    def __init__(
        self,
        made: Parts | None = None,
        source: GroupSource | None = None,
        *,
        local: int = 2,
        external: int = 0,
        eval_every: int = NEVER,
        checkpoint_every: int = NEVER,
        rules: Rules = Rules(costs=False),  # noqa: B008 - frozen; engines here take no time
        sleep_mode: bool = False,
        teacher: Teacher | None = None,
        select: type[Selection] = UniformSelection,
        trusted: Callable[[], Set[bytes]] = frozenset,
        blocked: Callable[[], Set[bytes]] = frozenset,
        hidden: Callable[[], Set[str]] = frozenset,
        unread: Set[str] = frozenset(),
        done: int = 0,
    ) -> None:
        clock = VirtualClock(START)
        self.calls: list[str] = []
        if made is None:
            journal = Journal(MEMORY, clock)
            made = parts(journal, lambda policy: VirtualEngine(policy, self.calls.append), teacher)
        self.policy, self.engine, self.counters = made.policy, made.engine, made.counters
        self.pool = Pool(made.journal, 64, 60.0, clock, self.counters)
        experience = Experience.around(self.pool)
        self.accounts = experience.accounts
        self.peer_advantage = PeerAdvantage()
        self.intake = Watching(self.policy, GroupLimits(8, 1000), b"", self.counters)
        self.evaluated: list[int] = []
        self.saved: list[tuple[int, int]] = []
        self.rated: list[tuple[int, float]] = []
        self.kept: set[int] = set()
        self.published: list[list[tuple[int, int]]] = []
        self.outcomes: list[Outcome] = []
        self.reported: Callable[[Outcome], object] = self.outcomes.append
        section = MixtureSection(external=external, local=local)
        self.source = source or made.tasks
        self.external = ExternalGroups(
            experience,
            Mixture(section, 0, select(section, self.peer_advantage)),
            self.peer_advantage,
            self.intake,
            self.counters,
            replaced=external if rules.fill else 0,
            trusted=trusted,
            blocked=blocked,
            hidden=hidden,
            unread=unread,
        )
        keys = {"engine.sleep_mode": sleep_mode, "learner.max_completion_tokens": CAP}
        keys |= {"learner.lr": 1e-3, "mixture.correction": "none"}
        config = Config.with_overrides(keys)
        self.trained = TrainedPolicy(config, self.policy, self.counters, self.engine)
        self.rounds = TrainingLoop(
            source=self.source,
            external=self.external,
            trained=self.trained,
            evaluate=lambda: self.evaluated.append(self.policy.version) or REWARD,
            publish=lambda groups: self.published.append([(g.epoch, g.index) for g in groups]),
            save=lambda number: self.saved.append((number, self.policy.version)),
            rate=lambda *told: self.rated.append(told) or told[0] in self.kept,
            report=lambda outcome: self.reported(outcome),
            counters=self.counters,
            local=local,
            schedule=ScheduleSection(eval_every=eval_every, checkpoint_every=checkpoint_every),
            rules=rules,
            round=done,
        )

    def prove(self, *authors: bytes) -> None:
        """Give authors reputation."""
        self.accounts.prove([(author, 1.0) for author in authors for _ in range(8)])

    def learn(self, **told: object) -> None:
        """Add these values to the statistics of every update."""
        update = self.trained.learner.update
        self.trained.learner.update = lambda *asked: replace(update(*asked), **told)

    def fail(self, errors: Iterable[Exception | None]) -> None:
        """Make updates raise these errors in turn; None lets one update pass."""
        update, left = self.trained.learner.update, iter(errors)

        def failing(*asked: object) -> UpdateStats:
            if error := next(left, None):
                raise error
            return update(*asked)

        self.trained.learner.update = failing
