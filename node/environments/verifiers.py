"""Single-turn tasksets of https://github.com/PrimeIntellect-ai/verifiers.

Supported is what needs no model client, harness or container: a task's prompt, and its rewards for
a trace with that prompt and the policy's answer.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from verifiers import v1 as vf
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, UserMessage
from verifiers.v1.utils.generic import concrete_type

from node.environments.environment import Environment, adapted

MOST_TASKS = 4096  # Per taskset; all are loaded before the first is used.
NO_BOX = ("setup", "finalize")  # A task's methods that run in a container, with its scoring.


def as_environment(found: type[Any]) -> type[Environment]:
    """Return the environment of a ``vf.Taskset``; its settings are those of a level.

    The class must define ``replayable``, and ``version`` if it is in a package.
    """
    return adapted(found, _Tasks, taskset=found, _loaded={})


class _Tasks:
    taskset: ClassVar[type[Any]]
    _loaded: ClassVar[dict[str, list[Any]]]

    @classmethod
    def refusal(cls, settings: Mapping[str, Any]) -> str | None:
        """Return why a taskset is not supported, if so, before loading its tasks."""
        if reserved := sorted(settings.keys() & vf.TasksetConfig.model_fields.keys()):
            return f"{reserved[0]} is not for a level to set: use what {cls.__name__} adds to it"
        try:
            if reason := _unanswerable(cls.taskset, cls._config(settings)):
                return f"{cls.__name__} cannot be answered here: {reason}"
            tasks = cls._tasks(settings)
        except Exception as error:  # noqa: BLE001 - whatever it raises, there are no tasks
            reason = " ".join(repr(error).split())
            return f"the tasks of {cls.__name__} cannot be loaded: {reason:.200}"
        if not all(isinstance(task.data.prompt, str) for task in tasks):
            return f"{cls.__name__} has prompts that are not text"
        return None if tasks else f"{cls.__name__} has no task"

    def reset(self, seed: int, **settings: Any) -> str:
        tasks = self._tasks(settings)
        self._task = tasks[seed % len(tasks)]
        self._answer: str | None = None
        data = self._task.data
        return "\n\n".join(filter(None, (data.system_prompt, data.prompt_text)))

    def step(self, action: str) -> tuple[str, bool]:
        self._answer = action
        return "", True

    async def reward(self) -> float:
        """Return the sum of the task's weighted rewards."""
        if self._answer is None:
            return 0.0
        trace = _trace(self._task, self._answer)
        await self._task.score(trace)
        return float(trace.reward)

    @classmethod
    def _tasks(cls, settings: Mapping[str, Any]) -> list[Any]:
        key = json.dumps(settings, sort_keys=True)
        if key not in cls._loaded:
            taskset = cls.taskset(cls._config(settings))
            cls._loaded[key] = list(itertools.islice(taskset, MOST_TASKS))
        return cls._loaded[key]

    @classmethod
    def _config(cls, settings: Mapping[str, Any]) -> Any:
        config_cls = concrete_type(cls.taskset, vf.TasksetConfig) or vf.TasksetConfig
        return config_cls(**settings)


def _unanswerable(taskset: type[Any], config: Any) -> str | None:
    """Return what the tasks of a taskset need in addition to an answer, if anything."""
    task = taskset.task_type()
    if taskset.toolsets(config) or task.toolsets(config.task):
        return "it has tools, which are servers"
    if config.task.judges:
        return "a model judges the answers"
    methods = (func for base in task.__mro__ for func in vars(base).values() if callable(func))
    rewards = [func for func in methods if hasattr(func, "reward")]
    if not rewards:
        return "its tasks have no rewards of their own"
    in_runtime = [func for func in rewards if "runtime" in inspect.signature(func).parameters]
    replaced = any(getattr(task, name) is not getattr(vf.Task, name) for name in NO_BOX)
    return "its tasks need a container" if in_runtime or replaced or task.NEEDS_CONTAINER else None


def _trace(task: Any, answer: str) -> Any:
    trace_task = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = AgentInfo(config=vf.AgentConfig())
    trace: Any = Trace(task=trace_task, state=state_cls(type(task))(), agent=agent)
    question, reply = UserMessage(content=task.data.prompt_text), AssistantMessage(content=answer)
    trace.nodes = [
        vf.MessageNode(message=question, timestamp=0.0),
        vf.MessageNode(message=reply, parent=0, sampled=True, timestamp=0.0),
    ]
    return trace
