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
    named = FOLDER if folder.root == path.absolute().parent else str(out)
    if out.exists():
        remedy = f"Move it away, or train it: join with policy.model = {named!r} in {path}."
        raise NodeError("there is already a warm start", out, remedy)
    if Checkpoints(folder.checkpoints).steps():
        remedy = "Start a new node with: swarm-node init FOLDER --model MODEL."
        raise NodeError("this node has trained already", folder.root, remedy)
    manifest = manifest_of(folder)
    with verifier_of(config, manifest) as (verifier, levels):
        policy = Policy.load(config.policy, tell=say)
        record = _Run(config, policy, verifier, _lowest(levels)).train(steps, say)
    for left in folder.root.glob(f".{FOLDER}-*"):  # of a killed process
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=folder.root, prefix=f".{FOLDER}-") as scratch:
        whole = Path(scratch, FOLDER)
        with filling(Path(scratch), folder.root):
            policy.save(whole)
            record.write(whole)
            for written in (*whole.iterdir(), whole):
                fsync_path(written)
        whole.rename(out)
        fsync_path(folder.root)
    set_keys(path, {"policy.model": named})
    say(f"wrote {out}, and policy.model = {named} into {path}; the base stays {record.base}")
    return record


def _lowest(levels: EnvLevels) -> list[EnvLevel]:
    seen: dict[str, list[EnvLevel]] = {}
    for pair in sorted(levels):
        seen.setdefault(pair[0], []).append(pair)
    return [pair for of_env in seen.values() for pair in of_env[:LOWEST]]


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
        before = self._look()
        say(f"before: {_summary(before)}")
        now, done = before, 0
        while done < steps and not enough(now):
            loss = self._learner.step(self._examples())
            done += 1
            if done % LOOK == 0 or done == steps:
                now = self._look()
                say(f"step {done}: loss {loss:.3f} nats per token, {_summary(now)}")
        return WarmStarted(
            base=self._config.policy.model,
            steps=done,
            examples=done * EXAMPLES,
            families=tuple(dict.fromkeys(env for env, _ in self._levels)),
            success_before=before.success,
            success_after=now.success,
            informative_after=now.informative,
        )

    def _examples(self) -> list[tuple[str, str]]:
        """Draw examples; a level without known answers is not drawn again."""
        found: list[tuple[str, str]] = []
        while len(found) < EXAMPLES:
            if not self._levels:
                remedy = "Choose a task set with known answers, such as starter."
                raise NodeError("there are no examples", "no task has a known answer", remedy)
            drawn = self._rng.choices(self._levels, k=EXAMPLES - len(found))
            tasks = [
                TaskRef(env, level, self._rng.getrandbits(63), Split.TRAIN) for env, level in drawn
            ]
            for pair, (prompt, solution) in zip(drawn, self._verifier.examples(tasks), strict=True):
                if solution is not None:
                    found.append((prompt, solution))
                elif pair in self._levels:
                    self._levels.remove(pair)
        return found

    def _look(self) -> Evaluation:
        families = {env: (env, level) for env, level in reversed(self._levels)}
        count = max(TASKS, -(-LEAST_TASKS // len(families)))
        tasks = [TaskRef.heldout(*pair, n) for pair in families.values() for n in range(count)]
        engine = self._config.engine
        # With the policy itself, for the weights of now.
        transformers = changed(self._config, {"engine.backend": "transformers"})
        sampling = Sampling(engine.temperature, engine.max_new_tokens, seed=0)
        turns = TurnLimits.of(engine)
        with closing(open_engine(transformers, self._policy, Counters())) as open_one:
            evaluator = Evaluator(
                self._policy, open_one, self._verifier, tasks, sampling, Counters(), turns
            )
            return evaluator.evaluate(COMPLETIONS)


def enough(found: Evaluation) -> bool:
    """Return whether right answers are frequent, or beside wrong ones in enough groups.

    Partial credit alone, which makes rewards differ, is not enough.
    """
    right = [sum(reward >= SOLVED for reward in row) for row in found.rewards]
    mixed = sum(0 < n < len(row) for n, row in zip(right, found.rewards, strict=True))
    return max(found.success, mixed / len(right)) >= ENOUGH


def _summary(found: Evaluation) -> str:
    return (
        f"{found.success:.0%} of completions are correct, {found.informative:.0%} of groups are "
        "informative"
    )
