import os
import signal
from functools import partial
from pathlib import Path

import pytest

from node.engines.engine import Sampling, SamplingRequest
from node.engines.registry import DataParallelEngine
from node.errors import NodeError
from tests.node.engines.test_engine_process import finished, nudged, opened
from tests.support import random_policy

SAMPLING = Sampling(max_new_tokens=4)
POLICY = random_policy()


@pytest.fixture
def engines(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    counting = {"backend": "counting", "module": "strange_engine", "options": {"slow": 0.02}}
    return [opened(POLICY, tmp_path, seed=n, timeout=10.0, **counting) for n in range(2)]


@pytest.fixture
def fleet(engines):
    fleet = DataParallelEngine(engines, POLICY)
    yield fleet
    fleet.close()


def unfinished_and_finished(fleet: DataParallelEngine) -> list[int]:
    """Return all keys; a request may finish while the other engine restarts."""
    return sorted([key for key, _ in fleet.pause()] + [key for key, _ in fleet.poll(0.0)])


def counted(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(prompt) + 2, len(prompt) + 6))


def test_completions_are_in_prompt_order_across_engines(fleet, engines):
    prompts = [(1,) * length for length in range(1, 8)]
    groups = fleet.generate(prompts, 2, SAMPLING)
    expected = [[counted(prompt)] * 2 for prompt in prompts]
    assert [[sample.tokens.ids for sample in group] for group in groups] == expected
    assert engines[0].pid != engines[1].pid


def test_each_prompt_goes_to_one_engine_and_load_is_even(fleet, engines, monkeypatch):
    prompts_of = []

    def record(submit, trajectories, sampling):
        prompts_of.append({each.prompt for each in trajectories})
        submit(trajectories, sampling)

    for engine in engines:
        monkeypatch.setattr(engine, "submit", partial(record, engine.submit))
    prompts = [(1,) * length for length in (1, 2, 3, 4)]
    requests = [SamplingRequest(8 * n + k, p) for n, p in enumerate(prompts) for k in range(8)]
    fleet.submit(requests, SAMPLING)
    assert [len(each) for each in prompts_of] == [2, 2]
    ids = {key: sample.tokens.ids for key, sample in finished(fleet, 32).items()}
    assert ids == {t.key: counted(t.prompt) for t in requests}
    assert fleet.poll(0.0) == []


def test_nudge_interrupts_a_waiting_poll(fleet):
    assert nudged(fleet) == []


def test_pause_returns_unfinished_requests_in_submission_order(fleet):
    keys = [5, 3, 9, 1]
    fleet.submit([SamplingRequest(key, (1,) * key) for key in keys], Sampling(max_new_tokens=400))
    assert [key for key, _ in fleet.pause()] == keys
    fleet.submit([SamplingRequest(key, (1,) * key) for key in keys], SAMPLING)
    assert set(finished(fleet, 4)) == set(keys)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_hung_engine_loses_no_requests(fleet, engines, how):
    fleet.generate([(1,), (2,)], 1, SAMPLING)
    fleet.submit([SamplingRequest(key, (1,) * (key + 1)) for key in range(6)], Sampling())
    os.kill(engines[1].pid, how)
    assert set(finished(fleet, 6)) == set(range(6))


def test_second_engine_failure_raises_and_loses_no_requests(fleet, engines):
    trajectories = [SamplingRequest(key, (1,) * (key + 1)) for key in range(2)]
    for _ in range(2):
        fleet.submit(trajectories, Sampling(max_new_tokens=400))
        fleet.generate([(1,), (2,)], 1, SAMPLING)
        os.kill(engines[1].pid, signal.SIGKILL)
        assert unfinished_and_finished(fleet) == [0, 1]
    with pytest.raises(NodeError, match="the engine failed twice"):
        fleet.submit(trajectories, Sampling(max_new_tokens=400))
    assert unfinished_and_finished(fleet) == [0, 1]


def test_engines_ignore_an_invalid_submission(fleet):
    fleet.submit([SamplingRequest(0, (1, 2))], SAMPLING)
    with pytest.raises(ValueError, match="keys already"):
        fleet.submit([SamplingRequest(1, (1,)), SamplingRequest(0, (1, 2))], SAMPLING)
    with pytest.raises(ValueError, match="a prompt of 600 tokens"):
        fleet.submit([SamplingRequest(1, (1,)), SamplingRequest(2, (1,) * 600)], SAMPLING)
    assert set(finished(fleet, 1)) == {0}
    fleet.submit([SamplingRequest(1, (1,)), SamplingRequest(2, (1,))], SAMPLING)
    assert set(finished(fleet, 2)) == {1, 2}
