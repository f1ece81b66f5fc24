"""Catalogues: TOML in, specs out, and one clear line for whatever is wrong."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from node.errors import CatalogueError
from node.tasks.catalogue import load_catalogue, open_catalogue
from protocol.manifest import EnvSpec

GCD = EnvSpec("gcd", "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")

HEAD = 'source = "reasoning-gym"\nversion = "0.1.25"\nextract = "text"\ntemplate = "{question}"\n'


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def test_the_shipped_catalogues_open_whole():
    for name in ("tiny", "reasoning-gym"):
        specs = load_catalogue(name)
        opened = open_catalogue(specs, {}, evaluating=["binary_matrix"])
        assert set(opened) == {spec.name for spec in specs}


def test_the_nine_tasks_of_the_paper_are_all_there():
    assert {spec.name for spec in load_catalogue("reasoning-gym")} == {
        "arc_1d",
        "basic_arithmetic",
        "base_conversion",
        "bf",
        "binary_matrix",
        "calendar_arithmetic",
        "decimal_arithmetic",
        "fraction_simplification",
        "propositional_logic",
    }


def test_keys_before_the_first_env_are_defaults(written):
    path = written(HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\n[[env]]\nname="lcm"\nlevels=[{}, {}]\n'
                   'template="Q: {question}"\n')  # fmt: skip
    gcd, lcm = load_catalogue(path)
    assert (gcd.template, lcm.template) == ("{question}", "Q: {question}")
    assert len(lcm.levels) == 2


def test_levels_become_canonical_json(written):
    path = written(HEAD + '[[env]]\nname="gcd"\nlevels=[{ min_value = 1, max_value = 9 }]\n')
    assert load_catalogue(path)[0].levels == ('{"max_value":9,"min_value":1}',)


def test_a_file_beside_the_catalogue_gives_its_digest_as_version(tmp_path, written):
    content = json.dumps({"prompt": "1+1", "answer": "2"}).encode()
    (tmp_path / "sums.jsonl").write_bytes(content)
    path = written(
        'extract="text"\ntemplate="{question}"\n[[env]]\nname="sums"\nsource="jsonl"\n'
        'file="sums.jsonl"\nlevels=[{match="exact"}]\n'
    )
    assert load_catalogue(path)[0].version == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no toml", "is not TOML"),
        (HEAD, "has no env"),
        (HEAD + "[[env]]\nlevels=[{}]", "needs a name"),
        (HEAD + '[[env]]\nname="gcd"', "'gcd' .* lacks levels"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\nmax=3', "unknown max; keys are"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=7', "'gcd'"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[]', "levels"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[3]', "level"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\nextract="regex"', "extract"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\nsource="web"', "source"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\ntemplate="?"', "question"),
        (HEAD + '[[env]]\nname="gcd"\nlevels=[{}]\n[[env]]\nname="gcd"\nlevels=[{}]', "twice"),
        (HEAD + '[[env]]\nname="x"\nlevels=[{}]\nfile="none.jsonl"', "cannot be read"),
    ],
)
def test_a_bad_catalogue_is_refused_in_one_line(written, text, message):
    with pytest.raises(CatalogueError, match=message) as refusal:
        load_catalogue(written(text))
    assert "\n" not in str(refusal.value)


def test_an_unknown_catalogue_is_answered_with_the_known_ones():
    with pytest.raises(CatalogueError, match="name one of games, reasoning-gym, tiny"):
        load_catalogue("teeny")


def test_a_missing_file_is_named():
    with pytest.raises(CatalogueError, match=r"nowhere/mine\.toml"):
        load_catalogue("nowhere/mine.toml")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(GCD, name="gdc"), "'gdc' is no family of reasoning-gym"),
        (replace(GCD, version="0.1.1"), r"pip install reasoning-gym==0\.1\.1"),
        (replace(GCD, levels=('{"max":3}',)), "'gcd' level 0: setting 'max' = 3: no such"),
        (replace(GCD, levels=('{"min_value":-3}',)), "'gcd' level 0"),
        (replace(GCD, levels=('{"seed":3}',)), "'gcd' level 0"),
        (replace(GCD, name="spell_backward", levels=('{"data_file":"/etc/passwd"}',)), "data_file"),
        (replace(GCD, name="composite", levels=('{"datasets":[{"name":"gcd"}]}',)), "composite"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(spec, message):
    with pytest.raises(CatalogueError, match=message):
        open_catalogue([spec], {}, evaluating=["composite"])


def test_an_env_whose_file_or_package_is_not_here_is_left_out():
    specs = [
        GCD,
        EnvSpec("sums", "jsonl", "0" * 64, ('{"match":"exact"}',), "{question}", "text"),
        EnvSpec("theirs", "plugin", "1", ("{}",), "{question}", "text"),
    ]
    assert set(open_catalogue(specs, {})) == {"gcd"}


def test_a_family_that_keeps_a_list_of_items_serves_any_seed():
    source = open_catalogue([replace(GCD, name="list_functions")], {})["list_functions"]
    assert source.build(0, (1 << 63) - 1).prompt


def test_partial_credit_counts_only_where_a_level_says_so():
    spec = replace(GCD, name="spell_backward", levels=("{}", '{"partial_credit":true}'))
    source = open_catalogue([spec], {})["spell_backward"]
    whole, partial = source.build(0, 3), source.build(1, 3)
    almost = str(whole.entry["answer"])[:-1] + "?"
    assert whole.prompt == partial.prompt
    assert source.score(whole, almost) == 0.0
    assert 0.0 < source.score(partial, almost) < 1.0
