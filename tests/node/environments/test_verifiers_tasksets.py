import re
from pathlib import Path
from typing import Any

import pytest

from node.environments.own_file import environment_of
from node.errors import TaskSetError
from node.tasks.verifier.replay_trial import Trial, try_replays
from node.tasks.verifier.verifier import Verifier
from swarm.groups import TaskRef
from swarm.verification import NOT_REPLAYABLE, TrajectoryTexts, VerifierError
from tests.node.environments import parts

vf = pytest.importorskip("verifiers.v1")

ADDITION = """
import time

import verifiers.v1 as vf


class AdditionData(vf.TaskData):
    answer: int


class AdditionTask(vf.Task[AdditionData]):
    @vf.reward(weight=0.75)
    async def exact_match(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return {short}


class AdditionConfig(vf.TasksetConfig):
    num_tasks: int = 100


class AdditionTaskset(vf.Taskset[AdditionTask, AdditionConfig]):
    replayable = {replayable}

    def load(self):
        for n in range(self.config.num_tasks):
            yield AdditionTask(AdditionData(prompt=f"What is {{n}} + {{n}}?", answer=2 * n))
"""
SHORT = "float(len(trace.last_reply) < 4)"


def written(folder: Path, short: str = SHORT, replayable: bool = True):
    code = ADDITION.format(short=short, replayable=replayable)
    return parts.written(folder, "addition", code, "{ num_tasks = 50 }, {}")


def test_worker_prompts_and_scores_a_taskset_from_a_file(tmp_path):
    task = TaskRef("addition", 0, 3)
    with Verifier(*written(tmp_path), outside=True) as verifier:
        assert verifier.start() == ("addition",)
        (prompt,) = verifier.prompts([task])
        texts = (str(2 * int(prompt.split()[2])), "no", "no number")
        answers = [TrajectoryTexts((text,), truncated=False) for text in texts]
        assert verifier.verify(task, answers).rewards == (1.0, 0.25, 0.0)


def test_deterministic_rewards_pass_the_replay_check(tmp_path):
    assert try_replays(*written(tmp_path)) == Trial(("addition",), 8)


def test_replay_check_rejects_random_rewards(tmp_path):
    with pytest.raises(TaskSetError, match=r"has replayable = True, .* its reward is"):
        try_replays(*written(tmp_path, short="time.time_ns() % 99991 / 99991"))


def test_verifier_refuses_unreplayable_peer_taskset(tmp_path):
    specs, allowed = written(tmp_path, replayable=False)
    assert try_replays(specs, allowed) == Trial(unshared=("addition",))
    with Verifier(specs, allowed, outside=True) as verifier:
        verifier.start()
        with pytest.raises(VerifierError, match=NOT_REPLAYABLE):
            verifier.verify(TaskRef("addition", 0, 3), [TrajectoryTexts(("1",), truncated=False)])


class Data(vf.TaskData):
    pass


class Task(vf.Task[Data]):
    @vf.reward
    async def any_answer(self, trace: vf.Trace) -> float:
        return 1.0


class Unrewarded(vf.Task[Data]):
    pass


class Boxed(Task):
    @vf.reward
    async def tests_pass(self, runtime: vf.Runtime) -> float:
        return 1.0


class Prepared(Task):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        pass


class Config(vf.TasksetConfig):
    prompt: str = "Say something."


def taskset(task: type[Any]) -> type[Any]:
    class Some(vf.Taskset[task, Config]):  # type: ignore[misc,valid-type]
        replayable = True
        version = "3"

        def load(self):
            if self.config.prompt:
                yield task(Data(prompt=self.config.prompt))

    return Some


def test_package_class_sets_version_and_replayable():
    made = environment_of(taskset(Task))
    assert (made.version, made.replayable) == ("3", True)


@pytest.mark.parametrize(
    ("task", "settings", "why"),
    [
        (Unrewarded, {}, "no rewards of their own"),
        (Boxed, {}, "need a container"),
        (Prepared, {}, "need a container"),
        (Task, {"prompt": ""}, "has no task"),
        (Task, {"prompt": 3}, "cannot be loaded: .*prompt"),
        (Task, {"colour": "red"}, "cannot be loaded: .*colour"),
        (Task, {"task": {"rewards": {"x": {"fn": "os:system"}}}}, "task is not for a level to set"),
        (Task, {"system_prompt": "/etc/passwd"}, "system_prompt is not for a level to set"),
    ],
)
def test_unsupported_taskset_is_refused_with_a_reason(task, settings, why):
    assert re.search(why, environment_of(taskset(task)).refusal(settings))
