import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch.testing import assert_close

from node.engines.engine import RequestOutput, RolloutEngine, Sample, Sampling, SamplingRequest
from node.engines.process.child import Starter
from node.engines.process.engine import EngineProcess
from node.engines.transformers.engine import TransformersEngine
from node.engines.weight_snapshot import PREFIX, WEIGHTS
from node.errors import NodeError
from node.policy.policy import Policy
from protocol.rollout import Finish, Tokens
from swarm.common.counters import Counters
from tests.node.engines.test_transformers_engine import generated
from tests.node.programs import until
from tests.support import assert_drawn_from, random_policy

GREEDY = Sampling(max_new_tokens=24, greedy=True)
DEADLINE = 240.0
TIMEOUT = 10.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    engine = opened(random_policy(), tmp_path_factory.mktemp("engine"), backend="transformers")
    yield engine
    engine.close()


@pytest.fixture
def engine(shared):
    shared.update(random_policy())
    return shared


@pytest.fixture
def strange(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    engines = []

    def start(kind: str, timeout: float = DEADLINE, **options) -> EngineProcess:
        settings = {"timeout": timeout, "options": options, "module": "strange_engine"}
        engine = opened(random_policy(), tmp_path, backend=kind, **settings)
        engines.append(engine)
        return engine

    yield start
    for each in engines:
        each.close()


def opened(policy: Policy, place: Path, counters=None, **settings) -> EngineProcess:
    settings = {"seed": 0, "threads": 1, "timeout": DEADLINE, "place": place, **settings}
    settings["as_checkpoint"] = settings["backend"] != "transformers"
    return EngineProcess(policy, Starter(**settings), counters or Counters())


def finished(engine: RolloutEngine, count: int, seconds: float = DEADLINE) -> dict[int, Sample]:
    """Poll until so many requests have finished; return their samples by key."""
    samples: dict[int, Sample] = {}
    deadline = time.monotonic() + seconds
    while len(samples) < count:
        assert time.monotonic() < deadline, f"{len(samples)} of {count} requests finished"
        for key, sample in engine.poll(1.0):
            assert key not in samples
            samples[key] = sample
    return samples


def nudged(engine: RolloutEngine) -> list[tuple[int, Sample]]:
    """Return the result of a long poll that a nudge interrupts."""
    with ThreadPoolExecutor() as threads:
        polled = threads.submit(engine.poll, 3600.0)
        engine.nudge()
        return polled.result(DEADLINE)


def under_way(engine, trajectories, sampling: Sampling, tokens: int) -> dict[int, Sample]:
    """Wait for about ``tokens`` tokens of each request; return finished samples."""
    short = SamplingRequest(99, (1, 2))
    engine.submit([short], replace(sampling, max_new_tokens=tokens))
    engine.submit(trajectories, sampling)
    samples = {}
    while short.key not in samples:
        samples |= finished(engine, 1)
    del samples[short.key]
    return samples


def test_greedy_completions_equal_generate_prompt_by_prompt(engine):
    prompts = [(5, 6, 7), (1,) * 30, (1, 2, 3, 4), (5, 6, 7)]
    samples = engine.generate(prompts, 2, GREEDY)
    policy = random_policy()
    for prompt, (one, two) in zip(prompts, samples, strict=True):
        assert one.tokens.ids == two.tokens.ids == generated(policy, prompt, 24)
        assert one.text == policy.decode(one.tokens.ids)


def test_samples_follow_the_policy_distribution(engine):
    policy = random_policy(spread=0.1)
    engine.update(policy)
    (group,) = engine.generate([[3, 1, 4]], 4000, Sampling(0.7, max_new_tokens=1))
    ids = torch.tensor([[3, 1, 4, 0]])
    with torch.no_grad():
        logits = policy.model(ids).logits[0, 2]
    expected = (logits / 0.7).softmax(-1)
    freqs = torch.tensor([s.tokens.ids[0] for s in group]).bincount(minlength=len(expected)) / 4000
    assert_close(freqs, expected, atol=0.03, rtol=0)
    args = ([[3, 1, 4]], 64, Sampling(0.7, max_new_tokens=1))
    (other,) = TransformersEngine(policy, seed=0).generate(*args)
    known = {s.tokens.ids[0]: s.tokens.logprobs[0] for s in group}
    for sample in other:
        if sample.tokens.ids[0] in known:
            assert sample.tokens.logprobs[0] == pytest.approx(known[sample.tokens.ids[0]], abs=1e-4)


def test_generate_leaves_submitted_requests_to_poll_by_key(engine):
    policy = random_policy()
    engine.submit([SamplingRequest(7, (5, 6, 7)), SamplingRequest(3, (1, 2))], GREEDY)
    engine.submit([SamplingRequest(11, (9, 9))], Sampling(max_new_tokens=3, greedy=True))
    ((sample,),) = engine.generate([[1, 2, 3]], 1, GREEDY)
    assert sample.tokens.ids == generated(policy, (1, 2, 3), 24)
    samples = finished(engine, 3)
    assert samples[7].tokens.ids == generated(policy, (5, 6, 7), 24)
    assert samples[3].tokens.ids == generated(policy, (1, 2), 24)
    assert samples[11].tokens.ids == generated(policy, (9, 9), 3)
    assert samples[11].finish is Finish.LENGTH and engine.poll(0.0) == []


def test_generate_returns_no_completion_of_a_failed_call(engine, monkeypatch):
    failures = iter([ValueError("a failed step")])

    def output(*values):
        for error in failures:
            raise error
        return RequestOutput(*values)

    monkeypatch.setattr("node.engines.process.engine.RequestOutput", output)
    with pytest.raises(ValueError, match="a failed step"):
        engine.generate([[5, 6, 7]], 1, GREEDY)
    ((sample,),) = engine.generate([[1, 2, 3]], 1, GREEDY)
    assert sample.tokens.ids == generated(random_policy(), (1, 2, 3), 24)
    engine.pause()  # for the tests that follow


@pytest.mark.parametrize("begun", [False, True], ids=["no process", "running process"])
def test_nudge_interrupts_a_waiting_poll(engine, begun):
    if begun:
        engine.submit([SamplingRequest(0, (1, 2))], Sampling(max_new_tokens=1))
        assert finished(engine, 1)
    assert nudged(engine) == []


def test_engine_continues_a_partial_sample_and_keeps_its_tokens(engine):
    whole = generated(random_policy(), (5, 6, 7), 24)
    begun = Tokens(whole[:10], (-0.5,) * 10, (0,) * 10)
    later = random_policy()
    later.version = 4
    engine.update(later)
    engine.submit([SamplingRequest(1, (5, 6, 7), begun)], GREEDY)
    sample = finished(engine, 1)[1]
    assert sample.tokens.ids == whole
    assert sample.tokens.versions == (0,) * 10 + (4,) * (len(whole) - 10)
    assert sample.tokens.logprobs[:10] == begun.logprobs


@pytest.mark.parametrize(("ids", "finish"), [((1,) * 24, Finish.LENGTH), ((1, 97), Finish.STOP)])
def test_complete_request_finishes_immediately(engine, ids, finish):
    policy = random_policy()
    policy.stop_ids = (97,)
    engine.update(policy)
    begun = Tokens(ids, (-1.0,) * len(ids), (0,) * len(ids))
    engine.submit([SamplingRequest(0, (1, 2), begun)], GREEDY)
    ((key, sample),) = engine.poll(0.0)
    assert (key, sample.tokens.ids, sample.finish) == (0, ids, finish)


def test_resumed_samples_keep_logprob_and_version_of_each_token(engine):
    first, second = random_policy(spread=0.1), random_policy(seed=1, spread=0.1)
    second.version = 1
    engine.update(first)
    sampling = Sampling(max_new_tokens=450)
    prompt = (5, 6, 7)
    done = under_way(engine, [SamplingRequest(key, prompt) for key in range(6)], sampling, 40)
    pending = engine.pause()
    done |= dict(engine.poll(0.0))
    assert sorted([*(key for key, _ in pending), *done]) == list(range(6))
    assert [key for key, _ in pending] == sorted(key for key, _ in pending)
    engine.update(second)
    engine.submit([SamplingRequest(key, prompt, begun) for key, begun in pending], sampling)
    done |= finished(engine, len(pending))
    assert set(done) == set(range(6))
    for sample in done.values():
        assert_drawn_from(sample.tokens, prompt, first, second)


@pytest.mark.parametrize("prompt", [(), (1,) * 512, (1,) * 600])
def test_engine_rejects_invalid_prompt_length_and_continues(engine, prompt):
    engine.submit([SamplingRequest(0, (1, 2))], GREEDY)
    with pytest.raises(ValueError, match=f"a prompt of {len(prompt)} tokens"):
        engine.submit([SamplingRequest(1, prompt)], GREEDY)
    with pytest.raises(ValueError, match=f"a prompt of {len(prompt)} tokens"):
        engine.generate([prompt], 1, GREEDY)
    assert list(finished(engine, 1)) == [0]


def test_engine_rejects_a_key_until_its_request_finishes(engine):
    engine.submit([SamplingRequest(0, (1, 2))], GREEDY)
    with pytest.raises(ValueError, match="key 0"):
        engine.submit([SamplingRequest(0, (1, 2))], GREEDY)
    finished(engine, 1)
    engine.submit([SamplingRequest(0, (1, 2))], GREEDY)
    assert list(finished(engine, 1)) == [0]


def test_engine_replaces_killed_process_without_losing_tokens(tmp_path):
    counters = Counters()
    policy = random_policy()
    policy.stop_ids = (-1,)
    engine = opened(policy, tmp_path, backend="transformers", counters=counters)
    sampling = Sampling(max_new_tokens=480, greedy=True)
    under_way(engine, [SamplingRequest(key, (5, 6, key)) for key in range(3)], sampling, 20)
    os.kill(engine.pid, signal.SIGKILL)
    samples = finished(engine, 3)
    policy.model.generation_config.eos_token_id = None
    for key in range(3):
        assert samples[key].tokens.ids == generated(policy, (5, 6, key), 480)
        assert len(samples[key].tokens.logprobs) == len(samples[key].tokens.versions) == 480
    assert counters.snapshot() == {"engine_restarts": 1}
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_engine_replaces_hung_process_without_losing_tokens(strange, tmp_path):
    engine = strange("counting", TIMEOUT, slow=0.01)
    prompts = {key: (1,) * (key + 2) for key in range(3)}
    trajectories = [SamplingRequest(key, prompt) for key, prompt in prompts.items()]
    under_way(engine, trajectories, Sampling(max_new_tokens=400), 20)
    os.kill(engine.pid, signal.SIGSTOP)
    samples = finished(engine, 3)
    for key, prompt in prompts.items():
        lengths = range(len(prompt), len(prompt) + 400)
        tokens = samples[key].tokens
        assert tokens.ids == tuple((length + 1) % 90 + 1 for length in lengths)
        assert len(tokens.logprobs) == len(tokens.versions) == 400
    assert engine.counters.snapshot() == {"engine_restarts": 1}
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_second_crash_raises_error_with_last_stderr(strange, caplog):
    engine = strange("counting", dies_at=5)
    engine.submit([SamplingRequest(key, (5, 6, 7)) for key in range(3)], GREEDY)
    with pytest.raises(NodeError, match=r"failed twice.*SIGKILL: no more memory, sorry"):
        finished(engine, 3)
    assert "another one replaces it" in caplog.text
    pending = {key: begun.ids for key, begun in engine.pause()}
    assert pending == dict.fromkeys(range(3), tuple(range(5, 13)))
    with pytest.raises(NodeError, match="the engine failed twice"):
        engine.submit([SamplingRequest(0, (5, 6, 7))], GREEDY)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_pause_succeeds_if_the_process_dies_or_hangs(strange, how):
    engine = strange("counting", TIMEOUT, slow=0.05)
    under_way(engine, [SamplingRequest(0, (5, 6, 7))], GREEDY, 3)
    os.kill(engine.pid, how)
    ((key, begun),) = engine.pause()
    assert key == 0 and begun.ids == tuple(range(5, 5 + len(begun.ids)))
    assert engine.poll(0.0) == []
    assert engine.pid is None, "no process starts without requests"


def test_second_crash_during_pause_loses_no_requests(strange, caplog):
    engine = strange("counting", slow=0.05)
    under_way(engine, [SamplingRequest(0, (5, 6, 7))], Sampling(max_new_tokens=400), 3)
    os.kill(engine.pid, signal.SIGKILL)
    under_way(engine, [SamplingRequest(1, (5, 6, 7))], Sampling(max_new_tokens=400), 3)
    assert engine.counters.snapshot() == {"engine_restarts": 1}
    os.kill(engine.pid, signal.SIGKILL)
    pending = dict(engine.pause())
    assert sorted(pending) == [0, 1] and all(begun.ids for begun in pending.values())
    assert "the engine failed twice" in caplog.text
    with pytest.raises(NodeError, match="the engine failed twice"):
        engine.submit([SamplingRequest(2, (5, 6, 7))], GREEDY)


def test_engine_process_ignores_sigterm(strange):
    engine = strange("counting", slow=0.05)
    under_way(engine, [SamplingRequest(0, (5, 6, 7))], GREEDY, 3)
    os.kill(engine.pid, signal.SIGTERM)
    assert len(finished(engine, 1)[0].tokens.ids) == GREEDY.max_new_tokens
    assert engine.counters.snapshot() == {}


def test_failed_restart_names_the_limit_and_loses_no_requests(strange, monkeypatch):
    engine = strange("counting", slow=0.01)
    under_way(engine, [SamplingRequest(0, (5, 6, 7))], Sampling(max_new_tokens=400), 3)

    def spawn(*arguments):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr("node.engines.process.child.spawn", spawn)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(NodeError, match=r"temporarily unavailable.*ulimit -u"):
            finished(engine, 1)
    engine.submit([SamplingRequest(1, (1, 2))], GREEDY)
    lengths = {key: len(sample.tokens.ids) for key, sample in finished(engine, 2).items()}
    assert lengths == {0: 400, 1: 24}


def test_engine_generates_with_new_weights_after_sleep(engine):
    policy = random_policy(spread=0.2)
    for _ in range(2):
        engine.sleep()
    engine.update(policy)
    ((sample,),) = engine.generate([(5, 6, 7)], 1, GREEDY)
    assert sample.tokens.ids == generated(policy, (5, 6, 7), 24)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_sleeping_engine_defers_restart_to_the_next_request(strange, how, caplog):
    engine = strange("counting", TIMEOUT)
    engine.sleep()
    assert engine.pid is None, "sleep does not start a process"
    engine.generate([(1, 2)], 1, GREEDY)
    os.kill(engine.pid, how)
    engine.sleep()
    assert engine.poll(0.1) == [] and engine.counters.snapshot() == {"engine_restarts": 1}
    assert engine.pid is None, "a new process would take the learner's memory"
    assert "another one starts with the next request" in caplog.text
    ((sample,),) = engine.generate([(5, 6, 7)], 1, GREEDY)
    assert len(sample.tokens.ids) == GREEDY.max_new_tokens


def test_second_hang_raises_error_with_the_timeout(strange, caplog):
    engine = strange("counting", TIMEOUT, hangs_at=5)
    with pytest.raises(NodeError, match=r"failed twice.*did not respond for 10 s.*engine\.timeout"):
        engine.generate([(5, 6, 7)], 1, GREEDY)
    assert "SIGKILL: it did not respond for 10 seconds): another one replaces it" in caplog.text


def test_hung_process_does_not_block_large_requests(strange):
    engine = strange("counting", TIMEOUT)
    engine.generate([(1, 2)], 1, GREEDY)
    os.kill(engine.pid, signal.SIGSTOP)
    groups = engine.generate([(1,) * 500] * 1000, 1, Sampling(max_new_tokens=1))
    assert [sample.tokens.ids for (sample,) in groups] == [((500 + 1) % 90 + 1,)] * 1000
    assert engine.counters.snapshot() == {"engine_restarts": 1}


def test_slow_process_keeps_running(strange):
    engine = strange("counting", TIMEOUT, slow=0.25 * TIMEOUT)
    engine.generate([(1, 2)], 1, Sampling(max_new_tokens=6))
    assert engine.counters.snapshot() == {}


def test_process_that_hangs_at_start_is_not_restarted(strange, monkeypatch):
    monkeypatch.setattr("node.engines.process.child.START_SECONDS", TIMEOUT)
    engine = strange("stuck", TIMEOUT)
    with pytest.raises(NodeError, match=r"does not start: .*it did not respond for 10 seconds"):
        engine.generate([(1, 2)], 1, GREEDY)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("unloadable", r"exit status 1: cannot load: \S*\. Choose another model\. Its output"),
        ("too large", "SIGKILL: Killed: out of memory. If memory ran out"),
        ("unknown", "KeyError: 'unknown'"),
    ],
)
def test_failed_process_start_reports_reason_without_retry(strange, kind, words):
    engine = strange(kind)
    with pytest.raises(NodeError, match=f"(?s)does not start: .*{words}"):
        engine.generate([[1, 2]], 1, GREEDY)


def test_engine_reports_unusable_weights(strange):
    engine = strange("counting")
    for _ in range(2):
        engine.generate([[1, 2]], 1, GREEDY)
        engine.update(random_policy())
    with pytest.raises(NodeError, match="ValueError: these weights are of no use"):
        engine.generate([[1, 2]], 1, GREEDY)


def test_damaged_snapshot_error_names_the_weights_file(tmp_path):
    engine = opened(random_policy(), tmp_path, backend="transformers")
    engine.start()
    (folder,) = tmp_path.glob(f"{PREFIX}*")
    (folder / WEIGHTS).write_bytes(b"half")
    with pytest.raises(NodeError, match=f"missing or damaged.*{WEIGHTS}"):
        engine.generate([[1, 2]], 1, GREEDY)
    engine.close()


def test_closed_engine_ignores_updates_and_rejects_requests(strange):
    engine = strange("counting", slow=0.1)
    engine.submit([SamplingRequest(0, (1, 2))], GREEDY)
    engine.update(random_policy())
    engine.close()
    engine.update(random_policy())
    engine.close()
    with pytest.raises(NodeError, match="the engine is closed"):
        engine.generate([[1, 2]], 1, GREEDY)


def test_killed_owner_ends_the_process_and_removes_snapshot(tmp_path):
    code = (
        "import sys, pathlib, time; sys.path[:0] = sys.argv[2:];"
        "from tests.support import random_policy;"
        "from node.engines.engine import Sampling, SamplingRequest;"
        "from node.engines.process.engine import EngineProcess;"
        "from node.engines.process.child import Starter;"
        "from swarm.common.counters import Counters;"
        "engine = EngineProcess(random_policy(), Starter(backend='counting', seed=0, threads=1,"
        " timeout=60.0, place=pathlib.Path(sys.argv[1]), module='strange_engine',"
        " options={'slow': 0.05}), Counters());"
        "engine.submit([SamplingRequest(0, (1, 2))], Sampling(max_new_tokens=400));"
        "print(engine.pid, flush=True); time.sleep(60)"
    )
    here = Path(__file__).parent
    command = [sys.executable, "-c", code, str(tmp_path), str(here), str(here.parents[2])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        pid = int(owner.stdout.readline())
        owner.kill()
    until(lambda: not psutil.pid_exists(pid), DEADLINE)
    assert list(tmp_path.iterdir()) == []


def test_large_batches_are_split_into_messages(strange, monkeypatch):
    monkeypatch.setattr("node.engines.process.engine.MESSAGE_TOKENS", 100)
    prompts = [(1,) * length for length in (1, 60, 60, 200, 30, 30, 50)]
    groups = strange("counting").generate(prompts, 2, Sampling(max_new_tokens=1))
    expected = [((len(prompt) + 1) % 90 + 1,) for prompt in prompts]
    assert [sample.tokens.ids for (sample, _) in groups] == expected
