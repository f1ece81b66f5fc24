"""Groups are found by what is asked for, whatever stands in them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from node.monitor.groups import ShownCompletion
from node.storage.run_folder import RunFolder
from tests.node.dashboard.browser import served
from tests.node.monitor.test_groups_file import GROUP, write

BOB = "ab" * 32
HOSTILE = "</script><script>alert(1)</script>\u202e\ud800\x00\u2028"


def run_folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path).create()
    write(
        folder.groups,
        [
            GROUP,
            replace(GROUP, env="words", reason="All 2 answers have the reward 0."),
            replace(GROUP, origin="external", author=BOB, prompt="Seven times SIX"),
            replace(
                GROUP,
                origin="refused",
                author=BOB,
                in_update=False,
                reason="It was met before.",
                round=12,
                completions=(ShownCompletion(HOSTILE, None, None, False),),
            ),
        ],
    )
    return folder


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [4, 3, 2, 1]),
        ("limit=2", [4, 3]),
        ("before=3", [2, 1]),
        ("origin=own", [2, 1]),
        ("origin=refused", [4]),
        ("env=words", [2]),
        (f"author={BOB[:8].upper()}", [4, 3]),
        ("text=times%20six", [3]),
        ("text=script", [4]),
        ("taught=1", [3, 1]),
        ("taught=0&origin=own", [2]),
        ("text=nowhere", []),
        ("round=12", [4]),
        ("round=13", []),
    ],
)
def test_groups_are_found_the_newest_first(tmp_path: Path, query: str, found: list[int]) -> None:
    run_folder(tmp_path)
    with served(tmp_path) as site:
        answer = site.json(f"/api/v1/groups?{query}")
    assert [each["id"] for each in answer["groups"]] == found
    assert answer["more"] is (query == "limit=2")


def test_tokens_come_one_by_one_and_texts_as_they_are(tmp_path: Path) -> None:
    run_folder(tmp_path)
    with served(tmp_path) as site:
        answer = site.get("/api/v1/groups?limit=4")
    refused, *_, own = answer.json["groups"]
    assert own["completions"][0]["tokens"][0] == {
        "text": "2",
        "logprob": -0.5,
        "version": 3,
        "entropy": None,
    }
    (hostile,) = refused["completions"]
    assert (hostile["text"], hostile["reward"]) == (HOSTILE, None)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.body.isascii()


@pytest.mark.parametrize(
    "query", ["origin=everything", "taught=perhaps", "limit=x", "text=" + 300 * "x"]
)
def test_a_question_that_makes_no_sense_is_refused_in_words(tmp_path: Path, query: str) -> None:
    with served(tmp_path) as site:
        answer = site.get(f"/api/v1/groups?{query}")
    assert answer.status == 400 and answer.json["error"]


def test_a_folder_of_an_earlier_release_has_none(tmp_path: Path) -> None:
    with served(tmp_path) as site:
        assert site.json("/api/v1/groups") == {"groups": [], "more": False}


def test_a_listener_hears_of_new_groups(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    with served(tmp_path) as site, closing(site.stream()) as stream:
        stream.until("status")
        write(folder.groups, [GROUP])
        assert stream.until("groups") == {"last": 5}


def test_lines_that_are_no_groups_are_passed_over(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    with folder.groups.open("ab") as file:
        file.write(b'mallory\n{"id": 99}\n["x"]\n')
    with served(tmp_path) as site:
        assert [each["id"] for each in site.json("/api/v1/groups")["groups"]] == [4, 3, 2, 1]
