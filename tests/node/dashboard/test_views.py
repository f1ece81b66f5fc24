"""What the views answer: of made rounds, a real journal, a log and this machine."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from node.dashboard.groups import Learned, usefulness
from node.dashboard.rounds import Rounds, significant
from node.storage.run_folder import RunFolder
from protocol.identity import Identity, peer_id_of
from swarm.common.clock import SystemClock
from swarm.journal import Journal
from swarm.reputation import Accounts
from tests.node.dashboard.browser import record, served, write_rounds

ALICE, BOB = (Identity.from_seed(bytes([n]) * 32).author for n in (1, 2))


def run_folder(tmp_path: Path) -> RunFolder:
    """Thirty rounds, each of two own groups and three of Alice's; Bob's come late."""
    folder = RunFolder(tmp_path)
    write_rounds(
        folder,
        range(1, 31),
        groups_own=2,
        informative_own=0.5,
        groups_external=lambda n: 3 + (n > 20),
        authors=lambda n: {ALICE.hex(): 3} | ({BOB.hex(): 1} if n > 20 else {}),
        useful=lambda n: {ALICE.hex(): 1.0} | ({BOB.hex(): 0.0} if n > 20 else {}),
        levels=lambda n: {"sums/0": n / 30} | ({"words/1": 0.5} if n % 2 else {}),
        reward_eval=lambda n: n / 100 if n % 5 == 1 else None,
    )
    return folder


def test_updates_are_stacked_by_author(tmp_path: Path) -> None:
    run_folder(tmp_path)
    with served(tmp_path) as site:
        found = site.json("/api/v1/updates?since=18")
        few = site.json("/api/v1/updates?points=3")
    assert found["rounds"] == list(range(19, 31))
    assert found["own"] == [2] * 12 and found["other"] == [0] * 12
    assert found["authors"] == {ALICE.hex(): [3] * 12, BOB.hex(): [0] * 2 + [1] * 10}
    assert few["rounds"][-1] == 30 and len(few["rounds"]) == 3
    assert few["authors"][ALICE.hex()] == [3, 3, 3]


def test_authors_beyond_the_dozen_largest_are_others(tmp_path: Path) -> None:
    many = {f"{n:064x}": 1 + (n < 12) for n in range(20)}
    write_rounds(RunFolder(tmp_path), [1, 2], groups_external=32, authors=many)
    with served(tmp_path) as site:
        found = site.json("/api/v1/updates")
    assert set(found["authors"]) == {name for name, groups in many.items() if groups == 2}
    assert found["other"] == [8, 8]


def test_rewards_stand_by_family_and_level_where_there_are_any(tmp_path: Path) -> None:
    run_folder(tmp_path)
    with served(tmp_path) as site:
        sums, words = site.json("/api/v1/levels")["families"]
    assert (sums["env"], sums["level"], len(sums["rounds"])) == ("sums", 0, 30)
    assert (words["env"], words["level"]) == ("words", 1)
    assert words["rounds"] == list(range(1, 31, 2)) and set(words["reward"]) == {0.5}


def test_records_of_earlier_releases_tell_of_no_authors_and_no_levels(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for line in lines:
        for name in ("authors", "useful", "levels"):
            del line[name]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with served(tmp_path) as site:
        assert site.json("/api/v1/levels") == {"families": []}
        assert site.json("/api/v1/updates")["authors"] == {}
        assert site.json("/api/v1/updates")["other"] == [3] * 20 + [4] * 10
        assert site.json("/api/v1/authors") == {"authors": []}


def books(folder: RunFolder) -> Journal:
    """Alice's groups were admitted and of use; Bob lied."""
    journal = Journal(folder.journal, SystemClock())
    accounts = Accounts(journal, SystemClock())
    accounts.admit(ALICE, 90)
    accounts.prove([(ALICE, 1.0)] * 12)
    accounts.refuse(BOB, "reward_mismatch", 6)
    return journal


def test_authors_are_told_with_what_they_gave_and_what_it_was_worth(tmp_path: Path) -> None:
    with closing(books(run_folder(tmp_path))), served(tmp_path) as site:
        alice, bob = site.json("/api/v1/authors")["authors"]
    assert (alice["author"], alice["used"], alice["admitted"]) == (ALICE.hex(), 90, 90)
    assert alice["peer_id"].startswith("12D3Koo") and alice["standing"] > 0.99
    assert alice["share"] == pytest.approx(90 / (60 + 90 + 10))
    gain = alice["usefulness"]
    # each round: one own group that teaches, and as much of Alice's
    assert gain["gain"] == pytest.approx((0.26 - 0.01) / 2)
    assert gain["low"] <= gain["gain"] <= gain["high"]
    assert (bob["used"], bob["banned"], bob["standing"]) == (10, True, 0)
    assert bob["refused"] == {"reward_mismatch": 6} and bob["strikes"] > 5
    assert bob["usefulness"]["gain"] == 0


def test_an_author_who_is_a_peer_is_told_with_what_it_says_of_itself(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    told = {"name": "<b>anna</b>", "line": None, "model": "tiny", "version": "0.1.0"}
    folder.write_status({"peers": [{"peer_id": peer_id_of(ALICE), **told}]})
    with closing(books(folder)), served(tmp_path) as site:
        alice, bob = site.json("/api/v1/authors")["authors"]
        (peer,) = site.json("/api/v1/peers")["peers"]
    assert {key: alice[key] for key in told} == {key: peer[key] for key in told} == told
    assert {key: bob[key] for key in told} == dict.fromkeys(told)
    assert alice["author"] == ALICE.hex()


def test_the_journal_is_read_while_its_writer_is_in_the_middle_of_a_transaction(
    tmp_path: Path,
) -> None:
    with (
        closing(books(run_folder(tmp_path))) as journal,
        served(tmp_path) as site,
        journal.transaction() as connection,
    ):
        connection.execute("DELETE FROM accounts")
        assert len(site.json("/api/v1/authors")["authors"]) == 2


def test_a_stopped_nodes_journal_is_read_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    books(folder).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with served(tmp_path) as site:
        assert site.json("/api/v1/authors")["authors"][0]["admitted"] == 90
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_journal_of_another_layout_is_named_with_a_remedy(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    with closing(sqlite3.connect(folder.journal)) as old:
        old.execute("PRAGMA user_version=3")
    with served(tmp_path) as site:
        answer = site.get("/api/v1/authors")
    assert answer.status == 503
    assert "layout 3" in answer.json["error"] and "use another run folder" in answer.json["error"]


def learned(heldout: Sequence[float], own: float, theirs: Sequence[float]) -> Learned:
    rounds = len(heldout)
    return Learned(
        np.array(heldout, np.float64),
        np.full(rounds, own),
        np.arange(rounds),
        np.zeros(rounds, np.intp),
        np.array(theirs, np.float64),
    )


def test_the_gains_of_all_make_what_the_held_out_reward_rose_by() -> None:
    rng = np.random.default_rng(0)
    heldout = np.cumsum(rng.random(50))
    values = np.concatenate([rng.random(50), rng.random(50)])
    both = Learned(
        heldout,
        np.zeros(50),
        np.concatenate([np.arange(50)] * 2),
        np.repeat(np.array([0, 1], np.intp), 50),
        values,
    )
    found = usefulness(both, [0, 1])
    assert found is not None
    assert sum(each.gain for each in found) == pytest.approx(heldout[-1] - heldout[0])


def test_who_gave_while_the_reward_fell_has_a_loss() -> None:
    rising, falling = [n / 10 for n in range(6)], [0.5 - n / 10 for n in range(1, 6)]
    found = usefulness(learned([*rising, *falling], 1.0, [0.0] * 5 + [1.0] * 6), [0])
    assert found is not None and found[0].gain == pytest.approx(-0.25)


def test_the_interval_holds_what_chance_adds_in_nineteen_of_twenty_runs() -> None:
    """An author with half of each update, of a policy that learns nothing: all gain is chance."""
    rng = np.random.default_rng(1)
    held = [
        usefulness(learned(rng.normal(0.5, 0.05, 40), 1.0, [1.0] * 40), [0]) for _ in range(400)
    ]
    covered = [found[0].low <= 0.0 <= found[0].high for found in held if found]
    assert len(covered) == 400 and 0.9 <= np.mean(covered) <= 0.99


def test_of_few_evaluations_nothing_is_said() -> None:
    assert usefulness(learned([0.1, 0.2, 0.3, 0.4], 1.0, [1.0] * 4), [0]) is None


def test_rounds_that_were_thinned_out_count_with_those_that_stand_for_them(tmp_path: Path) -> None:
    kept = [1, 4, 8, 9, 10]
    write_rounds(
        RunFolder(tmp_path), kept, groups_own=0, groups_external=2, authors={ALICE.hex(): 2}
    )
    with served(tmp_path) as site:
        (alice,) = site.json("/api/v1/authors")["authors"]
    assert (alice["used"], alice["share"]) == (20, 1)


def test_a_long_history_comes_in_as_few_rows_as_are_asked_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rounds(folder, range(1, 1001), reward_own=float, bytes_in=int, learning_rate=None)
    rounds = Rounds(folder.metrics)
    rounds.look()
    table = rounds.table(0, 11)
    columns = table["columns"]
    assert table["count"] == 1000 and len(columns["round"]) == 11
    assert columns["round"][-1] == columns["reward_own"][-1] == 1000
    assert columns["bytes_in"] == columns["round"], "of totals the last"
    assert columns["reward_own"][0] == pytest.approx(np.mean(range(1, columns["round"][0] + 1)))
    assert columns["learning_rate"] == [None] * 11, "never measured"


def test_of_rounds_that_were_done_again_the_later_ones_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rounds(folder, [1, 2, 3, 4], reward_own=0.1, authors={ALICE.hex(): 1})
    rounds = Rounds(folder.metrics)
    assert [each.round for each in rounds.look()] == [1, 2, 3, 4]
    write_rounds(folder, [3], reward_own=0.9, authors={BOB.hex(): 1})
    assert [each.round for each in rounds.look()] == [3]
    assert rounds.table(0, 10)["columns"]["reward_own"] == [0.1, 0.1, 0.9]
    totals = rounds.named["authors"].totals(rounds.column("round"), rounds.weights())
    assert totals == {ALICE.hex(): 2, BOB.hex(): 1}


def test_a_file_that_is_thinned_is_read_anew_and_is_no_news(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rounds(folder, range(1, 9))
    rounds = Rounds(folder.metrics)
    rounds.look()
    other = RunFolder(tmp_path / "thinned")
    write_rounds(other, [1, 4, 7, 8, 9])
    other.metrics.replace(folder.metrics)
    assert [each.round for each in rounds.look()] == [9]
    assert rounds.table(0, 10)["columns"]["round"] == [1, 4, 7, 8, 9]


def test_a_line_that_is_damaged_or_not_whole_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rounds(folder, [1])
    with folder.metrics.open("ab") as file:
        file.write(b'{"round": \n["mallory"]\n{"round": "x", "policy_step": 1}\n')
        file.write(json.dumps(record(2).to_dict()).encode())
    rounds = Rounds(folder.metrics)
    rounds.look()
    assert rounds.table(0, 10)["columns"]["round"] == [1] and rounds.damaged == 3
    with folder.metrics.open("ab") as file:
        file.write(b"\n")
    assert [each.round for each in rounds.look()] == [2]


def test_numbers_keep_the_digits_that_count() -> None:
    values = np.array([0.0, 123456.789, -0.000123456789, 1234567.0, np.nan])
    assert np.nan_to_num(significant(values, 6)).tolist() == [
        0.0,
        123457.0,
        -0.000123457,
        1234567.0,
        0.0,
    ]


def test_health_says_what_doctor_finds_and_what_alarms_mean(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rounds(
        folder,
        range(1, 301),
        mean_length=lambda n: 10.0 if n < 280 else 40.0,
        engine_gap=0.2,
        counters={"forgetting_alarms": 2.0},
    )
    with served(tmp_path) as site:
        health = site.json("/api/v1/health")
    checks = {each["what"] for each in health["findings"]}
    assert {"packages", "disk", "key file", "clock", "isolation"} <= checks
    assert all(each["remedy"] for each in health["findings"] if each["level"] != "ok")
    told = {each["name"]: each for each in health["alarms"]}
    assert [told[name]["level"] for name in ("forgetting", "engine gap", "length drift")] == (
        ["warn"] * 3
    )
    assert told["length drift"]["value"] == pytest.approx(4)
    assert told["refused steps"]["level"] == "ok"
    assert all(each["means"] for each in told.values())


def test_the_end_of_the_log_is_told_and_no_more_than_that(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).create()
    folder.log.write_text("".join(f"line {n}\n" for n in range(100_000)) + "not whole")
    with served(tmp_path) as site:
        assert site.json("/api/v1/log?lines=3")["lines"] == [
            f"line {n}" for n in range(99997, 100000)
        ]
        assert len(site.json("/api/v1/log?lines=100000")["lines"]) == 1000
        folder.log.write_bytes(b"mallory \x1b[2J\xff\n")
        (line,) = site.json("/api/v1/log")["lines"]
    assert line.startswith("mallory \\x1b[2J") and line.isprintable()


def test_peers_are_those_of_the_state(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path).create()
    peer = {"peer_id": "12D3KooWlarry", "connected": True, "link": "direct"}
    folder.write_status({"state": "running", "peer_id": "12D3KooWme", "peers": [peer], "time": 1.0})
    with served(tmp_path) as site:
        told = site.json("/api/v1/peers")
    assert told["self"]["peer_id"] == "12D3KooWme"
    assert told["peers"] == [{**peer, "connected": False, "link": None}], "it does not run"
