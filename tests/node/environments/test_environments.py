import asyncio
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy
import pytest

from experiments.recipe.local_verifier import LocalVerifier
from node.environments.environment import MOST_ACTION, Episode, EpisodeError, raised, run
from node.environments.own_file import replayed
from node.errors import TaskSetError
from node.tasks.scorer import Answered, Move, Scorer
from node.tasks.sources.environments import Environments
from node.tasks.task_set import Allowed, load_task_set, open_envs, overview
from node.tasks.verifier.verifier import Verifier
from node.tasks.verifier.worker_process import WorkerLimits
from node.trajectories.player import verified
from node.trajectories.trajectory import Trajectory
from protocol.manifest import EnvSpec
from protocol.rollout import Finish
from swarm.groups import TaskRef
from swarm.verification import (
    NOT_REPLAYABLE,
    NOT_REPLAYED,
    Submission,
    TrajectoryTexts,
    VerifierError,
)
from tests.node.environments import parts
from tests.node.environments.parts import FOR_TESTS, spec
from tests.node.packages import declare

SPECS = tuple(spec(name) for name in FOR_TESTS)
"""One level each, with three turns."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("installed")
        shutil.copy(Path(__file__).with_name("parts.py"), folder / "strange_environments.py")
        for name, each in FOR_TESTS.items():
            target = f"strange_environments:{each.__name__}"
            declare(patch, folder, name, target, "swarm_node.environments")
        yield


@pytest.fixture(scope="module", params=["worker", "here"])
def scorer(request, installed):
    if request.param == "here":
        yield LocalVerifier([each for each in SPECS if each.name != "slow"])
        return
    with Verifier(SPECS, outside=False, limits=WorkerLimits(wall_seconds=20)) as verifier:
        yield verifier


def task(name: str, seed: int = 5) -> TaskRef:
    return TaskRef(name, 0, seed)


def letter(scorer: Scorer, ref: TaskRef) -> str:
    (prompt,) = scorer.prompts([ref])
    return prompt.split()[1]


def played(scorer: Scorer, ref: TaskRef, *actions: str, key: int = 1) -> TrajectoryTexts:
    """Play these actions, the last of which ends the episode; return the trajectory."""
    texts: list[str] = []
    for number in range(1, len(actions) + 1):
        (moved,) = scorer.play([Move(key, ref, actions[:number], final=False)])
        texts += [actions[number - 1], moved.observation]
        assert moved.over == (number == len(actions)) == (moved.reward is not None)
    return TrajectoryTexts(tuple(texts[:-1]), truncated=False)


def reward(scorer: Scorer, ref: TaskRef, turns: TrajectoryTexts) -> float:
    return scorer.verify(ref, [turns]).rewards[0]


@pytest.mark.parametrize("name", ["echo", "drawing"])
def test_replayed_trajectory_earns_the_same_reward(scorer, name):
    ref = task(name)
    right = letter(scorer, ref)
    turns = played(scorer, ref, right, "z", right)
    assert len(turns.texts) == 5 and reward(scorer, ref, turns) == pytest.approx(2 / 3)


def test_concurrent_episodes_keep_separate_random_states(scorer):
    refs = [task("drawing", seed) for seed in (1, 2)]
    serial = [played(scorer, ref, "a", "b", "c", key=n) for n, ref in enumerate(refs)]
    joint = [[], []]
    for number in (1, 2, 3):
        moves = [Move(n, ref, ("a", "b", "c")[:number], False) for n, ref in enumerate(refs)]
        for n, moved in enumerate(scorer.play(moves)):
            joint[n] += ["abc"[number - 1], moved.observation]
    assert [tuple(each[:-1]) for each in joint] == [each.texts for each in serial]


def test_scorer_replays_an_episode_it_no_longer_holds(scorer):
    ref = task("drawing")
    turns = played(scorer, ref, "a", "b", "c")
    (moved,) = scorer.play([Move(77, ref, ("a", "b"), final=False)])
    assert moved.observation == turns.texts[3]


def test_early_end_earns_the_reward_so_far_if_marked_truncated(scorer):
    ref = task("echo")
    (moved,) = scorer.play([Move(3, ref, (letter(scorer, ref),), final=True)])
    assert moved == Answered("", False, pytest.approx(1 / 3))
    texts = (letter(scorer, ref),)
    assert reward(scorer, ref, TrajectoryTexts(texts, truncated=True)) == pytest.approx(1 / 3)
    with pytest.raises(VerifierError, match=f"{NOT_REPLAYED}: it does not end with turn 1"):
        reward(scorer, ref, TrajectoryTexts(texts, truncated=False))


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (lambda t: replace(t, texts=(*t.texts[:1], "1 b", *t.texts[2:])), "turn 1 is answered"),
        (lambda t: replace(t, texts=t.texts[2:]), "turn 1 is answered"),
        (lambda t: replace(t, texts=t.texts[:-2]), "does not end with turn 2"),
        (lambda t: replace(t, texts=(*t.texts, "", "a")), "turn 4 follows the end"),
        (lambda t: replace(t, texts=t.texts[2:4] + t.texts[:2] + t.texts[4:]), "is answered"),
    ],
    ids=["an observation", "first turn dropped", "last turn dropped", "a turn added", "order"],
)
def test_scorer_refuses_forged_trajectory(scorer, forged, why):
    ref = task("echo")
    turns = played(scorer, ref, "a", "b", "c")
    assert reward(scorer, ref, turns) >= 0
    with pytest.raises(VerifierError, match=why) as refused:
        reward(scorer, ref, forged(turns))
    assert refused.value.reason == NOT_REPLAYED


def test_scorer_accepts_any_turn_and_errors_end_with_zero_reward(scorer):
    ref = task("tripping")
    (moved,) = scorer.play([Move(4, ref, (letter(scorer, ref), "x"), final=False)])
    assert moved == Answered("", True, 0.0)
    ref = task("echo")
    for text in ("", "\0\x1b[2J", "[" * 100_000, "x" * 10_000_000, "\u202e\ufeff"):
        (moved,) = scorer.play([Move(5, ref, (text,), final=True)])
        assert moved.reward == 0.0


def test_verifier_refuses_turns_for_single_turn_family(installed):
    sums = EnvSpec("gcd", "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
    with Verifier([sums], outside=False) as verifier:
        assert verifier.environments == frozenset()
        (moved,) = verifier.play([Move(1, TaskRef("gcd", 0, 1), ("1",), True)])
        assert isinstance(moved, VerifierError) and "one turn" in str(moved)
        with pytest.raises(VerifierError, match="one turn"):
            turns = TrajectoryTexts(("1", "?", "2"), truncated=False)
            verifier.verify(TaskRef("gcd", 0, 1), [turns])


def test_scorer_plays_unreplayable_environment_but_refuses_it(scorer):
    ref = task("passing")
    turns = played(scorer, ref, "a", "b", "c")
    assert scorer.unrepeatable == {"passing"}
    with pytest.raises(VerifierError) as refused:
        reward(scorer, ref, turns)
    assert refused.value.reason == NOT_REPLAYABLE
    (moved,) = scorer.play([Move(99, ref, ("a", "b"), final=False)])
    assert isinstance(moved, VerifierError), "the episode is not held and cannot be replayed"
    own = Trajectory((), Finish.STOP, reward=0.25)
    (scores,) = verified(scorer, [(ref, [own, own])])
    assert scores.rewards == (0.25, 0.25)


def test_scorer_lists_environments_with_hidden_randomness(scorer):
    assert scorer.hidden == {"drawing"}


def test_environment_counts_as_hidden_by_default():
    class Silent:
        version = "1"
        replayable = True

    assert Environments(Silent, [{}], "text").hidden


def test_async_environments_wait_in_parallel(installed):
    with Verifier([spec("slow")], outside=False) as verifier:
        refs = [task("slow", seed) for seed in range(64)]
        moved = verifier.play([Move(n, ref, ("a",), False) for n, ref in enumerate(refs)])
        assert [each.observation for each in moved] == ["1 a"] * 64
        turns = played(verifier, refs[0], "a", "b", "c")
        (scores,) = verifier.verify_some([Submission(refs[0], [turns])])
        assert not isinstance(scores, VerifierError)


class Waits:
    """Yields to other episodes between draws, also in the tasks that it starts."""

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True

    async def reset(self, seed: int) -> str:
        return await drawn()

    async def step(self, action: str) -> tuple[str, bool]:
        bounded = await asyncio.wait_for(drawn(), 20)
        both = await asyncio.gather(drawn(), drawn())
        return f"{bounded} {both} {await drawn()}", False

    async def reward(self) -> float:
        await asyncio.sleep(0)
        return random.random()


async def drawn() -> str:
    first = random.random()
    await asyncio.sleep(0)
    return f"{first} {random.random()} {numpy.random.random()}"


async def episode(seed: int) -> list[str | float]:
    current = Episode(Waits, seed, {})
    return [await current.begin(), *[await current.step("") for _ in "ab"], await current.reward()]


def test_concurrent_episodes_draw_the_same_random_numbers():
    async def together(seeds):
        return await asyncio.gather(*map(episode, seeds))

    seeds = range(5)
    serial = [run(episode(seed), waits=True) for seed in seeds]
    assert run(together(seeds), waits=True) == serial
    assert len({str(each) for each in serial}) == len(seeds)


def test_canceled_episode_does_not_change_other_random_states():
    async def one_given_up():
        other = asyncio.create_task(episode(1))
        await asyncio.sleep(0)
        other.cancel()
        result = await episode(2)
        with pytest.raises(asyncio.CancelledError):
            await other
        return result

    assert run(one_given_up(), waits=True) == run(episode(2), waits=True)


EXAMPLE = Path(__file__).parents[3] / "examples" / "own_environment"
WRITTEN = (EXAMPLE / "treasure.py").read_text()
TOOLS = '''
class Shop:
    replayable = True

    def reset(self, seed: int) -> str:
        return f"Shop {seed}"

    def buy(self, count: int) -> str:
        """Buy."""
        return str(count)

    def get_reward(self) -> float:
        return 1.0
'''


def written(folder: Path, levels: str = "{}", code: str = WRITTEN) -> tuple[EnvSpec, Allowed]:
    (spec,), allowed = parts.written(folder, "treasure", code, levels)
    return spec, allowed


def test_worker_plays_the_example():
    task = TaskRef("treasure", 0, 1)
    specs = load_task_set(str(EXAMPLE / "treasure.toml"))
    with Verifier(specs, Allowed({"treasure": EXAMPLE / "treasure.py"}), outside=True) as verifier:
        assert verifier.start() == ("treasure",)
        (prompt,) = verifier.prompts([task])
        assert prompt.startswith("At house ")
        scores = verifier.verify(task, [TrajectoryTexts(("w",), truncated=True)])
        assert scores.rewards[0] in (0.0, 1.0)


@pytest.mark.parametrize(("length", "read"), [(MOST_ACTION, 2), (MOST_ACTION + 1, 1)])
def test_overlong_turn_ends_the_episode_with_the_reward_so_far(length, read):
    seen = []
    episode = Episode(parts.Echo, 3, {"turns": 4}, lambda turn: seen.append(turn) or turn)
    turns = ("d", "1 d", "e" * length)
    assert run(replayed(episode, turns, truncated=True), waits=False) == 0.25
    assert len(seen) == read and episode.over == (read == 1)


@pytest.mark.parametrize(
    ("given", "reward"),
    [(True, 1.0), (1, 1.0), (numpy.float32(0.5), 0.5), (numpy.bool_(False), 0.0)],
)
def test_reward_accepts_any_number_type(monkeypatch, given, reward):
    monkeypatch.setattr(parts.Echo, "reward", lambda self: given)
    assert run(replayed(Episode(parts.Echo, 3, {}), ("d",), truncated=True), waits=False) == reward


@pytest.mark.parametrize("given", [float("nan"), 1.5, -1, None, "much", float("inf")])
def test_invalid_reward_is_error(monkeypatch, given):
    monkeypatch.setattr(parts.Echo, "reward", lambda self: given)
    with pytest.raises(EpisodeError, match=r"reward (gave .*: return a number from 0 to 1|fails)"):
        run(replayed(Episode(parts.Echo, 3, {}), ("d",), truncated=True), waits=False)


def test_open_envs_reports_environment_without_file(tmp_path):
    spec, _ = written(tmp_path)
    sources, closed = open_envs([spec], Allowed())
    assert not sources and "set tasks.files.treasure to its file" in closed["treasure"]
    assert any("to its file" in line for line in overview([spec], Allowed()))


def test_open_envs_rejects_a_changed_file(tmp_path):
    spec, allowed = written(tmp_path)
    (tmp_path / "treasure.py").write_text(WRITTEN + "\n")
    with pytest.raises(TaskSetError, match=r"is of version .*: restore it"):
        open_envs([spec], allowed)


def test_syntax_error_names_file_and_line():
    with pytest.raises(SyntaxError) as error:
        compile("\nclass Treasure\n", "/tasks/treasure.py", "exec")
    assert raised(error.value) == "SyntaxError(\"expected ':'\") at treasure.py:2"
    with pytest.raises(SyntaxError) as error:
        eval("1 +")
    assert "test_environments.py" in raised(error.value) and len(raised(error.value, 40)) == 40


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ("{ room = 3 }", "level 0: room is not known: reset takes rooms, turns"),
        ("{ }, { rooms = 'x' }", "level 1: rooms = 'x': reset takes int"),
        ("{ rooms = 2.5 }", "rooms = 2.5: reset takes int"),
        ("{ rooms = true }", "rooms = True: reset takes int"),
        ("{ turns = 3 }", "rooms is missing"),
    ],
)
def test_open_envs_rejects_settings_that_reset_lacks(tmp_path, levels, why):
    code = WRITTEN.replace("rooms: int = 5", "rooms: int") if "missing" in why else WRITTEN
    with pytest.raises(TaskSetError, match=why):
        spec, allowed = written(tmp_path, levels, code)
        open_envs([spec], allowed)


BROKEN = {
    "no class": ("x = 1", "defines no class with reset, step, reward"),
    "an import that fails": ("import nowhere", "fails: ModuleNotFoundError"),
    "a script": ("import sys\n\nsys.exit('done')", r"fails: SystemExit\('done'\)"),
    "an unknown hint": (
        WRITTEN.replace("rooms: int", "rooms: 'Rooms'"),
        r"reset.*NameError.*Rooms",
    ),
    "a tool's": (TOOLS.replace("count: int", "count: 'Count'"), r"NameError.*Count"),
    "a reset's": (TOOLS.replace("seed: int", "seed: 'Seed'"), r"NameError.*Seed"),
    "no seed": (WRITTEN.replace("self, seed: int, *,", "self, *,"), "reset takes no seed"),
    "no argument that is a seed": (
        WRITTEN.replace("self, seed: int, *,", "self,"),
        r"define reset\(self, seed\)",
    ),
    "not said to be replayable": (
        WRITTEN.replace("replayable", "repeats"),
        "does not say whether it is replayable",
    ),
    "two classes": (
        WRITTEN.replace("Treasure", "A") + WRITTEN.replace("Treasure", "B"),
        "defines 2 classes",
    ),
}


@pytest.mark.parametrize(("code", "why"), BROKEN.values(), ids=BROKEN)
def test_open_envs_rejects_file_without_environment(tmp_path, code, why):
    spec, allowed = written(tmp_path, code=code)
    with pytest.raises(TaskSetError, match=why):
        open_envs([spec], allowed)


@pytest.mark.parametrize("name", ["rope-bridge", "rope_bridge", "rope.bridge", "RopeBridge"])
def test_class_name_matches_env_name_despite_separators_and_case(tmp_path, name):
    code = WRITTEN.replace("Treasure", "Base") + "\n\nclass RopeBridge(Base):\n    pass\n"
    (spec,), allowed = parts.written(tmp_path, name, code, "{}")
    assert open_envs([spec], allowed)[0].keys() == {name}
    (spec,), allowed = parts.written(tmp_path, f"{name}2", code, "{}")
    with pytest.raises(TaskSetError, match=r"defines 2 .*: Base, RopeBridge: name .* RopeBridge2"):
        open_envs([spec], allowed)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("guess", '{"most":1000000000000}'),
        ("maze", '{"far":100}'),
        ("tictactoe", '{"stones":5}'),
        ("calculator", '{"digits":1000000}'),
        ("bandit", '{"pulls":0}'),
    ],
)
def test_build_rejects_extreme_settings_from_hostile_creator(name, settings):
    spec = EnvSpec(name, "environment", "1", (settings,), "{question}", "text")
    source = open_envs([spec], Allowed())[0][name]
    with pytest.raises(ValueError, match=r"cannot draw: ValueError.*use "):
        source.build(0, 1)
