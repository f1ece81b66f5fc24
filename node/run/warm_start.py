"""A warm start: supervised steps on generated examples of a swarm's own tasks."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from node.config.config import Config, changed, set_keys
from node.config.learning import LearnerSection
from node.engines.engine import Sampling
from node.engines.registry import open_engine
from node.errors import NodeError
from node.evaluation.comparison import manifest_of, verifier_of
from node.evaluation.evaluator import SOLVED, Evaluation, Evaluator
from node.learner.supervised import SupervisedLearner, WarmStarted
from node.policy.policy import Policy
from node.storage.atomic_files import filling
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from node.tasks.curriculum import EnvLevel, EnvLevels
from node.tasks.verifier.verifier import Verifier
from node.trajectories.trajectory import TurnLimits
from swarm.common.counters import Counters
from swarm.common.util import Say, fsync_path
from swarm.groups import Split, TaskRef

FOLDER = "warm-start"
EXAMPLES = 16  # of a step
LOOK = 10  # steps between two looks at the success
LOWEST = 2  # levels of each family that the examples are of, where the config names none
TASKS, LEAST_TASKS, COMPLETIONS = 2, 16, 4  # of a family, in all, and of a task, at each look
ENOUGH = 0.4  # share of right answers, or of groups with right and wrong ones: it ends
LR_FACTOR, MOST_LR = 5, 1e-3  # of learner.lr; of what comes of it


def warm_start(config: Config, folder: RunFolder, path: Path, steps: int, say: Say) -> WarmStarted:
    """Train ``policy.model`` on examples, and make the result the node's model.

    It is written to ``warm-start`` in the run folder, with a record; the base model stays as it is.
    ``path`` is the config, whose ``policy.model`` is changed. Raises NodeError if the node has
    trained, has no manifest, or its tasks have no known answers.
    """
    out = folder.root / FOLDER
    model_name = FOLDER if folder.root == path.absolute().parent else str(out)
    if out.exists():
        remedy = f"Move it away, or train it: join with policy.model = {model_name!r} in {path}."
        raise NodeError("there is already a warm start", out, remedy)
    if Checkpoints(folder.checkpoints).steps():
        remedy = "Start a new node with: swarm-node init FOLDER --model MODEL."
        raise NodeError("this node has trained already", folder.root, remedy)
    manifest = manifest_of(folder)
    with verifier_of(config, manifest) as (verifier, levels):
        policy = Policy.load(config.policy, tell=say)
        record = _Run(config, policy, verifier, _lowest(levels)).train(steps, say)
    for leftover in folder.root.glob(f".{FOLDER}-*"):  # of a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    with TemporaryDirectory(dir=folder.root, prefix=f".{FOLDER}-") as scratch:
        draft = Path(scratch, FOLDER)
        with filling(Path(scratch), folder.root):
            policy.save(draft)
            record.write(draft)
            for entry in (*draft.iterdir(), draft):
                fsync_path(entry)
        draft.rename(out)
        fsync_path(folder.root)
    set_keys(path, {"policy.model": model_name})
    say(f"wrote {out}, and policy.model = {model_name} into {path}; the base stays {record.base}")
    return record


def _lowest(levels: EnvLevels) -> list[EnvLevel]:
    by_env: dict[str, list[EnvLevel]] = {}
    for pair in sorted(levels):
        by_env.setdefault(pair[0], []).append(pair)
    return [pair for pairs in by_env.values() for pair in pairs[:LOWEST]]


class _Run:
    """The steps of one warm start, and the looks at what they achieved."""

    def __init__(
        self, config: Config, policy: Policy, verifier: Verifier, levels: EnvLevels
    ) -> None:
        self._config, self._policy, self._verifier = config, policy, verifier
        self._levels = list(levels)
        self._rng = random.Random(config.node.seed)
        lr = min(LR_FACTOR * config.learner.lr, MOST_LR)
        learning = LearnerSection.model_validate(
            {**config.learner.model_dump(), "lr": lr, "warmup_steps": LOOK // 2}
        )
        self._learner = SupervisedLearner(policy, learning)

    def train(self, steps: int, say: Say) -> WarmStarted:
        initial = self._look()
        say(f"before: {_summary(initial)}")
        latest, num_steps = initial, 0
        while num_steps < steps and not enough(latest):
            loss = self._learner.step(self._examples())
            num_steps += 1
            if num_steps % LOOK == 0 or num_steps == steps:
                latest = self._look()
                say(f"step {num_steps}: loss {loss:.3f} nats per token, {_summary(latest)}")
        return WarmStarted(
            base=self._config.policy.model,
            steps=num_steps,
            examples=num_steps * EXAMPLES,
            families=tuple(dict.fromkeys(env for env, _ in self._levels)),
            success_before=initial.success,
            success_after=latest.success,
            informative_after=latest.informative,
        )

    def _examples(self) -> list[tuple[str, str]]:
        """Draw examples; a level without known answers is not drawn again."""
        examples: list[tuple[str, str]] = []
        while len(examples) < EXAMPLES:
            if not self._levels:
                remedy = "Choose a task set with known answers, such as starter."
                raise NodeError("there are no examples", "no task has a known answer", remedy)
            pairs = self._rng.choices(self._levels, k=EXAMPLES - len(examples))
            tasks = [
                TaskRef(env, level, self._rng.getrandbits(63), Split.TRAIN) for env, level in pairs
            ]
            for pair, (prompt, solution) in zip(pairs, self._verifier.examples(tasks), strict=True):
                if solution is not None:
                    examples.append((prompt, solution))
                elif pair in self._levels:
                    self._levels.remove(pair)
        return examples

    def _look(self) -> Evaluation:
        families = {env: (env, level) for env, level in reversed(self._levels)}
        count = max(TASKS, -(-LEAST_TASKS // len(families)))
        tasks = [TaskRef.heldout(*pair, n) for pair in families.values() for n in range(count)]
        engine = self._config.engine
        # With the policy itself, for the weights of now.
        config = changed(self._config, {"engine.backend": "transformers"})
        sampling = Sampling(engine.temperature, engine.max_new_tokens, seed=0)
        turns = TurnLimits.of(engine)
        with closing(open_engine(config, self._policy, Counters())) as live_engine:
            evaluator = Evaluator(
                self._policy, live_engine, self._verifier, tasks, sampling, Counters(), turns
            )
            return evaluator.evaluate(COMPLETIONS)


def enough(found: Evaluation) -> bool:
    """Return whether right answers are frequent, or beside wrong ones in enough groups.

    Partial credit alone, which makes rewards differ, is not enough.
    """
    num_right = [sum(reward >= SOLVED for reward in row) for row in found.rewards]
    num_mixed = sum(0 < n < len(row) for n, row in zip(num_right, found.rewards, strict=True))
    return max(found.success, num_mixed / len(num_right)) >= ENOUGH


def _summary(result: Evaluation) -> str:
    return (
        f"{result.success:.0%} of completions are correct, {result.informative:.0%} of groups are "
        "informative"
    )
