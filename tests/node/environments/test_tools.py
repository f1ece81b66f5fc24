import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.environments.environment import Episode, run, unfit
from node.environments.own_file import replayed
from node.environments.tools import (
    MalformedCall,
    ToolCall,
    as_environment,
    is_tool_class,
    tool_calls,
)
from node.errors import TaskSetError
from node.tasks.scorer import Answered, Move
from node.tasks.task_set import open_envs
from node.tasks.verifier.verifier import Verifier
from swarm.groups import TaskRef
from swarm.verification import TrajectoryTexts
from tests.node.environments.parts import written

SHOP = '''
import random


class OutOfStock(Exception):
    pass


class Shop:
    """Buy as much as there is money for."""

    replayable = True

    def reset(self, seed: int, money: int = 10, **row) -> str:
        self.price, self.money, self.bought = random.Random(seed).randint(1, 5), money, 0
        return f"Shop {seed % 9999}: you have {money}."

    def price_of(self, what: str) -> int:
        """What a thing costs.

        Args:
            what: the thing.
        """
        if what != "apple":
            raise OutOfStock(f"no {what} here")
        return self.price

    ASYNC def buy(self, count: int, gift: bool = False) -> dict[str, int]:
        """Buy some apples."""
        if count * self.price > self.money:
            raise ValueError("too dear")
        self.money -= count * self.price
        self.bought += count
        return {"left": self.money, "each": self.money // count}

    def get_reward(self) -> float:
        return min(1.0, self.bought / 3)
'''
LEVELS = '{ money = 20, city = "Rome" }'
ASYNC = [pytest.param("", id="plain"), pytest.param("async ", id="async")]


def shop(prefix: str = ""):
    module: dict[str, object] = {"__name__": "shop"}
    exec(SHOP.replace("ASYNC ", prefix), module)
    return module["Shop"]


@pytest.fixture(params=ASYNC)
def episode(request):
    environment = as_environment(shop(request.param))
    return lambda: Episode(environment, 3, {"money": 12})


def played(episode: Episode, *actions: str) -> tuple[list[str], float, bool]:
    async def play():
        first = await episode.begin()
        told = [first, *[await episode.step(action) for action in actions]]
        return told, await episode.reward(), episode.over

    return run(play(), waits=True)


def test_the_first_observation_lists_the_tools(episode):
    (first,), reward, over = played(episode())
    assert first == (
        "Shop 3: you have 12.\n\n"
        "Tools:\n"
        "- buy(count: int, gift: bool = false) -> dict[str, int]: Buy some apples.\n"
        "- price_of(what: str) -> int: What a thing costs. Args: what: the thing.\n"
        "Call a tool, as name(argument=value), or answer."
    )
    assert (reward, over) == (0.0, False)


def test_static_method_is_not_tool(episode):
    class Helpful(shop()):  # type: ignore[misc]
        @staticmethod
        def price(count: int) -> str:
            return f"{count} coins"

    first = Episode(as_environment(Helpful), 3, {"money": 12})
    assert played(first)[0] == played(episode())[0]


@pytest.mark.parametrize("declared", [{}, {"hidden": True}, {"hidden": False}])
def test_tool_class_declares_hidden_randomness(declared):
    environment = as_environment(type("Said", (shop(),), declared))
    assert environment.hidden is declared.get("hidden", True)


def test_episode_runs_calls_until_the_answer(episode):
    tagged = '<tool_call>{"name": "buy", "arguments": {"count": 1}}</tool_call>'
    turns = ('price_of(what="apple")', tagged, "buy(1)\nbuy(2)", "Done.")
    told, reward, over = played(episode(), *turns)
    left = 12 - int(told[1])
    assert told[2] == f'{{"left": {left}, "each": {left}}}'
    assert over and reward in (1.0, 1 / 3, 2 / 3)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("sell()", "error: there is no tool sell, only buy, price_of"),
        ("reset(seed=1)", "error: there is no tool reset, only buy, price_of"),
        ("__init__()", "error: there is no tool __init__, only buy, price_of"),
        ("get_reward()", "error: there is no tool get_reward, only buy, price_of"),
        ("buy()", "error: count is missing: buy takes count, gift"),
        ("buy(pay=1)", "error: pay is not known: buy takes count, gift"),
        ('buy("1")', "error: count = '1': buy takes int"),
        ("buy(true)", "error: count = True: buy takes int"),
        ("buy(1, false, 2)", "error: buy takes 2 arguments, not 3"),
        ("buy(1, count=2)", "error: count is given twice"),
        ("buy(0)", "error: ZeroDivisionError"),
        ("buy(99)", "error: ValueError: too dear"),
        ('price_of("pear")', "error: OutOfStock: no pear here"),
        ("buy(,)", "error: an argument that is not JSON"),
    ],
)
def test_wrong_call_returns_error_and_continues(episode, action, told):
    (_, observation), _, over = played(episode(), action)
    assert (observation, over) == (told, False)


def test_replay_returns_same_reward(episode):
    actions = ["buy(1)", "buy(7)", "no more"]
    told, reward, _ = played(episode(), *actions)
    turns = [each for pair in zip(actions, told[1:], strict=True) for each in pair][:-1]
    assert run(replayed(episode(), turns, truncated=False), waits=True) == reward


def test_settings_must_match_reset_types():
    environment = as_environment(shop())
    assert unfit(environment, {"money": 3, "anything": "else"}) is None
    assert unfit(environment, {"money": "3"}) == "money = '3': reset takes int"


class NoTools:
    def reset(self, **row) -> str:
        return ""

    def get_reward(self) -> float:
        return 0.0


class Undocumented(NoTools):
    def tool(self) -> str:
        return ""


class NoSeed(NoTools):
    def reset(self) -> str:
        return ""

    def tool(self) -> str:
        """A tool."""


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (NoSeed, "NoSeed.reset takes no seed"),
        (NoTools, "NoTools has no public method that is a tool"),
        (Undocumented, "Undocumented.tool has no docstring"),
    ],
)
def test_error_explains_invalid_class(found, why):
    assert is_tool_class(found)
    with pytest.raises(TypeError, match=why):
        as_environment(found)


@pytest.mark.parametrize("prefix", ASYNC)
def test_worker_plays_and_scores_a_tool_class_from_a_file(tmp_path, prefix):
    specs, allowed = written(tmp_path, "shop", SHOP.replace("ASYNC ", prefix), LEVELS)
    task = TaskRef("shop", 0, 7)
    with Verifier(specs, allowed, outside=True) as verifier:
        assert verifier.start() == ("shop",)
        (prompt,) = verifier.prompts([task])
        assert prompt.startswith("Shop ") and "Tools:\n- buy(" in prompt
        (answered,) = verifier.play([Move(1, task, ("buy(1)",), False)])
        assert isinstance(answered, Answered)
        (end,) = verifier.play([Move(1, task, ("buy(1)", "Thanks."), False)])
        assert end == Answered("", True, 1 / 3)
        turns = TrajectoryTexts(("buy(1)", answered.observation, "Thanks."), truncated=False)
        assert verifier.verify(task, [turns]).rewards == (1 / 3,)


def test_open_envs_rejects_tool_without_a_docstring(tmp_path):
    code = SHOP.replace('"""Buy some apples."""', "").replace("ASYNC ", "")
    with pytest.raises(TaskSetError, match=r"shop\.py.*Shop\.buy has no docstring"):
        open_envs(*written(tmp_path, "shop", code, LEVELS))


ADD = ToolCall("add", {"a": 1, "b": "x)y"})
NAMES = st.from_regex(r"\A[a-z_][a-z0-9_]{0,8}\Z")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@pytest.mark.parametrize(
    "text",
    [
        'add(a=1, b="x)y")',
        ' add( a = 1 ,b="x)y" ) \n',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x)y"}}\n</tool_call>',
        'I shall add.\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": "x)y"}}',
        '<think>add(9)</think>\nadd(a=1, b="x)y")',
        '{"name": "add", "parameters": {"a": 1, "b": "x)y"}}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": "x)y"}}',
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": "x)y"}}]',
        '[{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": \\"x)y\\"}"}]',
    ],
)
def test_all_forms_parse_alike(text):
    assert tool_calls(text) == [ADD]


def test_calls_in_one_turn_keep_their_order():
    add, sub = ToolCall("add", positional=(1, [2])), ToolCall("sub")
    assert tool_calls("add(1, [2])\nsub()") == [add, sub]
    tagged = '<tool_call>{"name": "b"}</tool_call> then <tool_call>{"name": "a"}</tool_call>'
    assert tool_calls(tagged) == [ToolCall("b"), ToolCall("a")]


@pytest.mark.parametrize(
    "text",
    ["", "42", "f(x) is 3", '{"answer": 3}', "[1, 2]", "<think>add(1)</think>7", "add(1", "{"],
)
def test_other_text_has_no_calls(text):
    assert tool_calls(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>{bad</tool_call>", "a call that is not JSON"),
        ("<tool_call></tool_call>", "a call that is not JSON"),
        ('{"name": 3}', 'no object with a "name"'),
        ('{"name": "add", "arguments": [1]}', 'the "arguments" of add are not an object'),
        ('{"name": "add"', "a call that is not JSON"),
        ("add(a=)", "an argument that is not JSON"),
        ("add(1,)", "an argument that is not JSON"),
        ("add(NaN)", "an argument that is not JSON"),
        (f"add({'9' * 5000})", "an argument that is not JSON"),
        ("add(a=1, 2)", "an argument without a name behind"),
        ("add(a=1, a=2)", "a is given twice"),
        ("add(1 2)", "neither a comma nor a bracket"),
        ("add(1) or add(2)", "no call at character 7"),
        (f"add({'[' * 500}{']' * 500})", "nested more than 32 deep"),
        (f"<tool_call>{'[' * 60_000}", "nested more than 32 deep"),
        ("add()\n" * 17, "17 calls in a turn: at most 16"),
    ],
)
def test_error_explains_bad_call(text, why):
    with pytest.raises(MalformedCall, match=why):
        tool_calls(text)


@given(st.text())
def test_any_text_parses_or_is_malformed_call(text):
    for hostile in (text, f"f({text})", f"<tool_call>{text}", f"[TOOL_CALLS]{text}"):
        try:
            assert all(isinstance(call, ToolCall) for call in tool_calls(hostile))
        except MalformedCall as error:
            assert str(error)


@given(NAMES, st.dictionaries(NAMES, VALUES, max_size=3))
def test_every_form_round_trips_a_call(name, arguments):
    named = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
    told = json.dumps({"name": name, "arguments": arguments})
    for text in (f"{name}({named})", told, f"[{told}]", f"<tool_call>{told}</tool_call>"):
        assert tool_calls(text) == [ToolCall(name, arguments)]
