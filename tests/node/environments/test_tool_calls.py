"""Calls of tools are read out of any text, alike everywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.environments.tools import MalformedCall, ToolCall, tool_calls

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
def test_each_form_is_the_same_call(text):
    assert tool_calls(text) == [ADD]


def test_several_calls_of_a_turn_keep_their_order():
    assert tool_calls("add(1, [2])\nsub()") == [
        ToolCall("add", positional=(1, [2])),
        ToolCall("sub"),
    ]
    tagged = '<tool_call>{"name": "b"}</tool_call> then <tool_call>{"name": "a"}</tool_call>'
    assert tool_calls(tagged) == [ToolCall("b"), ToolCall("a")]


@pytest.mark.parametrize(
    "text",
    ["", "42", "f(x) is 3", '{"answer": 3}', "[1, 2]", "<think>add(1)</think>7", "add(1", "{"],
)
def test_what_is_no_call_is_an_answer(text):
    assert tool_calls(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>{bad</tool_call>", "a call that is not JSON"),
        ("<tool_call></tool_call>", "a call that is not JSON"),
        ('{"name": 3}', 'no object with a "name"'),
        ('{"name": "add", "arguments": [1]}', 'the "arguments" of add are no object'),
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
def test_what_cannot_be_read_says_why(text, why):
    with pytest.raises(MalformedCall, match=why):
        tool_calls(text)


@given(st.text())
def test_any_text_is_calls_an_answer_or_malformed(text):
    for hostile in (text, f"f({text})", f"<tool_call>{text}", f"[TOOL_CALLS]{text}"):
        try:
            assert all(isinstance(call, ToolCall) for call in tool_calls(hostile))
        except MalformedCall as error:
            assert str(error)


@given(NAMES, st.dictionaries(NAMES, VALUES, max_size=3))
def test_every_form_gives_back_what_was_written(name, arguments):
    named = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
    told = json.dumps({"name": name, "arguments": arguments})
    for text in (f"{name}({named})", told, f"[{told}]", f"<tool_call>{told}</tool_call>"):
        assert tool_calls(text) == [ToolCall(name, arguments)]
