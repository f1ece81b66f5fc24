import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from node.dashboard.groups import Learned, usefulness
from node.dashboard.rounds import Rounds, significant
from node.monitor.groups import ShownCompletion
from node.storage.run_folder import RunFolder
from protocol.identity import Identity, peer_id_of
from swarm.common.clock import SystemClock
from swarm.journal import Journal
from swarm.reputation import Accounts
from tests.node.dashboard.browser import record, served, told, write_rounds
from tests.node.monitor.test_groups_file import GROUP, write

ALICE, BOB = (Identity.from_seed(bytes([n]) * 32).author for n in (1, 2))


@pytest.fixture
def folder(tmp_path):
    """Write 30 rounds with two local groups, three of Alice's and later Bob's."""
    folder = RunFolder(tmp_path)
    write_rounds(
        folder,
        range(1, 31),
        groups_local=2,
        informative_local=0.5,
        groups_external=lambda n: 3 + (n > 20),
        authors=lambda n: {ALICE.hex(): 3} | ({BOB.hex(): 1} if n > 20 else {}),
        useful=lambda n: {ALICE.hex(): 1.0} | ({BOB.hex(): 0.0} if n > 20 else {}),
        levels=lambda n: {"sums/0": n / 30} | ({"words/1": 0.5} if n % 2 else {}),
        reward_eval=lambda n: n / 100 if n % 5 == 1 else None,
    )
    return folder


def test_updates_are_stacked_by_author(folder):
    found, few = (told(folder.root, f"updates?{query}") for query in ("since=18", "points=3"))
    assert found["rounds"] == list(range(19, 31))
    assert found["own"] == [2] * 12 and found["other"] == [0] * 12
    assert found["authors"] == {ALICE.hex(): [3] * 12, BOB.hex(): [0] * 2 + [1] * 10}
    assert few["rounds"][-1] == 30 and len(few["rounds"]) == 3
    assert few["authors"][ALICE.hex()] == [3, 3, 3]


def test_updates_group_authors_beyond_the_top_12(tmp_path):
    many = {f"{n:064x}": 1 + (n < 12) for n in range(20)}
    write_rounds(RunFolder(tmp_path), [1, 2], groups_external=32, authors=many)
    found = told(tmp_path, "updates")
    assert set(found["authors"]) == {name for name, groups in many.items() if groups == 2}
    assert found["other"] == [8, 8]


def test_levels_api_groups_rewards_by_family_and_level(folder):
    sums, words = told(folder.root, "levels")["families"]
    assert (sums["env"], sums["level"], len(sums["rounds"])) == ("sums", 0, 30)
    assert (words["env"], words["level"]) == ("words", 1)
    assert words["rounds"] == list(range(1, 31, 2)) and set(words["reward"]) == {0.5}


@pytest.mark.parametrize(
    ("heldout", "level", "said"),
    [
        ([], "early", ""),
        ([0.2], "early", "every 10 rounds"),
        ([0.2, 0.25], "unclear", "0.20 → 0.25 since the start; within noise (±0.1"),
        ([0.2, 0.5], "better", "The node learns: held-out reward 0.20 → 0.50"),
        ([0.2, 0.9, 0.2, 0.2, 0.5, 0.5], "better", "0.20 → 0.50"),
        ([0.5, 0.2], "worse", "swarm-node rollback"),
        ([0.0, 0.0], "unclear", "within noise"),
        ([1.0, 1.0], "unclear", "within noise"),
        ([0.0, 4 / 64], "unclear", "within noise"),
    ],
)
def test_progress_reports_if_node_learns(tmp_path, heldout, level, said):
    folder = RunFolder(tmp_path)
    for number, reward in enumerate(heldout):
        write_rounds(folder, [10 * number + 1], reward_eval=reward, informative_local=0.4)
    found = told(tmp_path, "progress")
    assert found["level"] == level and said in found["text"]


def test_few_informative_groups_are_reported(tmp_path):
    write_rounds(RunFolder(tmp_path), range(1, 21), reward_eval=0.5, informative_local=0.01)
    assert "rewards differed in only 1% of local groups" in told(tmp_path, "progress")["text"]


def test_progress_is_unclear_for_one_task(tmp_path):
    write_rounds(RunFolder(tmp_path), [1], reward_eval=0.0)
    write_rounds(RunFolder(tmp_path), [11], reward_eval=1.0)
    with served(tmp_path, **{"schedule.eval_tasks": 1}) as site:
        assert site.json("/api/v1/progress")["level"] == "unclear"


def test_old_records_without_authors_and_levels_are_accepted(folder):
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for line in lines:
        for name in ("authors", "useful", "levels"):
            del line[name]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with served(folder.root) as site:
        assert site.json("/api/v1/levels") == {"families": []}
        assert site.json("/api/v1/updates")["authors"] == {}
        assert site.json("/api/v1/updates")["other"] == [3] * 20 + [4] * 10
        assert site.json("/api/v1/authors") == {"authors": []}


def books(folder: RunFolder) -> Journal:
    """Write a journal in which Alice was useful and Bob lied."""
    journal = Journal(folder.journal, SystemClock())
    accounts = Accounts(journal, SystemClock())
    accounts.admit(ALICE, 90)
    accounts.prove([(ALICE, 1.0)] * 12)
    accounts.refuse(BOB, "reward_mismatch", 6)
    return journal


def test_authors_api_reports_contribution_and_usefulness(folder):
    with closing(books(folder)):
        alice, bob = told(folder.root, "authors")["authors"]
    assert (alice["author"], alice["used"], alice["admitted"]) == (ALICE.hex(), 90, 90)
    assert alice["peer_id"].startswith("12D3Koo") and alice["standing"] > 0.99
    assert alice["share"] == pytest.approx(90 / (60 + 90 + 10))
    gain = alice["usefulness"]
    # Each round has one informative local group and as much use from Alice.
    assert gain["gain"] == pytest.approx((0.26 - 0.01) / 2)
    assert gain["low"] <= gain["gain"] <= gain["high"]
    assert (bob["used"], bob["banned"], bob["standing"]) == (10, True, 0)
    assert bob["refused"] == {"reward_mismatch": 6} and bob["strikes"] > 5
    assert bob["usefulness"]["gain"] == 0


def test_authors_api_includes_the_profile_of_a_peer(folder):
    said = {"name": "<b>anna</b>", "line": None, "model": "tiny", "version": "0.1.0"}
    folder.write_status({"peers": [{"peer_id": peer_id_of(ALICE), **said}]})
    with closing(books(folder)), served(folder.root) as site:
        alice, bob = site.json("/api/v1/authors")["authors"]
        (peer,) = site.json("/api/v1/peers")["peers"]
    assert {key: alice[key] for key in said} == {key: peer[key] for key in said} == said
    assert {key: bob[key] for key in said} == dict.fromkeys(said)
    assert alice["author"] == ALICE.hex()


def test_authors_api_reads_the_journal_during_a_transaction(folder):
    with closing(books(folder)) as journal, journal.transaction() as connection:
        connection.execute("DELETE FROM accounts")
        assert len(told(folder.root, "authors")["authors"]) == 2


def test_reading_a_stopped_journal_leaves_no_files(folder):
    books(folder).close()
    before = sorted(path.name for path in folder.root.iterdir())
    assert told(folder.root, "authors")["authors"][0]["admitted"] == 90
    assert sorted(path.name for path in folder.root.iterdir()) == before


def test_authors_api_reports_an_unknown_journal_layout(folder):
    with closing(sqlite3.connect(folder.journal)) as old:
        old.execute("PRAGMA user_version=3")
    with served(folder.root) as site:
        answer = site.get("/api/v1/authors")
        assert site.json("/api/v1/rounds")["last"] == 30
        assert site.json("/api/v1/updates") and site.json("/api/v1/health"), "these work"
    assert answer.status == 503
    assert "layout 3" in answer.json["error"] and "use another run folder" in answer.json["error"]


def learned(heldout: Sequence[float], own: float, theirs: Sequence[float]) -> Learned:
    rounds = len(heldout)
    own_groups, author = np.full(rounds, own), np.zeros(rounds, np.intp)
    return Learned(np.array(heldout), own_groups, np.arange(rounds), author, np.array(theirs))


def test_author_gains_sum_to_the_heldout_reward_increase():
    rng = np.random.default_rng(0)
    heldout, theirs = np.cumsum(rng.random(50)), rng.random(100)
    rounds, whose = np.tile(np.arange(50), 2), np.repeat(np.array([0, 1], np.intp), 50)
    found = usefulness(Learned(heldout, np.zeros(50), rounds, whose, theirs), [0, 1])
    assert found is not None
    assert sum(each.gain for each in found) == pytest.approx(heldout[-1] - heldout[0])


def test_usefulness_can_be_negative_and_needs_evaluations():
    rising, falling = [n / 10 for n in range(6)], [0.5 - n / 10 for n in range(1, 6)]
    found = usefulness(learned([*rising, *falling], 1.0, [0.0] * 5 + [1.0] * 6), [0])
    assert found is not None and found[0].gain == pytest.approx(-0.25)
    assert usefulness(learned([0.1, 0.2, 0.3, 0.4], 1.0, [1.0] * 4), [0]) is None


@pytest.mark.parametrize("rounds", [5, 40])
def test_usefulness_interval_covers_95_percent_of_noise(rounds):
    """The author has half of each update and the policy does not learn: gain is noise."""
    rng = np.random.default_rng(1)
    draws, shares = (rng.normal(0.5, 0.05, rounds) for _ in range(1000)), [1.0] * rounds
    results = [usefulness(learned(each, 1.0, shares), [0]) for each in draws]
    covered = [found[0].low <= 0.0 <= found[0].high for found in results if found]
    assert len(covered) == 1000 and 0.93 <= np.mean(covered) <= 0.99


def test_kept_rounds_also_count_for_the_thinned_rounds(tmp_path):
    groups = {"groups_local": 0, "groups_external": 2, "authors": {ALICE.hex(): 2}}
    write_rounds(RunFolder(tmp_path), [1, 4, 8, 9, 10], **groups)
    (alice,) = told(tmp_path, "authors")["authors"]
    assert (alice["used"], alice["share"]) == (20, 1)


def test_rounds_table_downsamples_a_long_history(tmp_path):
    folder = RunFolder(tmp_path)
    write_rounds(folder, range(1, 1001), reward_local=float, bytes_in=int, learning_rate=None)
    rounds = Rounds(folder.metrics)
    rounds.look()
    table = rounds.table(0, 11)
    columns = table["columns"]
    assert table["count"] == 1000 and len(columns["round"]) == 11
    assert columns["round"][-1] == columns["reward_local"][-1] == 1000
    assert columns["bytes_in"] == columns["round"], "totals keep the last value"
    assert columns["reward_local"][0] == pytest.approx(np.mean(range(1, columns["round"][0] + 1)))
    assert columns["learning_rate"] == [None] * 11, "the learning rate was never measured"


def test_repeated_rounds_replace_the_earlier_ones(tmp_path):
    folder = RunFolder(tmp_path)
    write_rounds(folder, [1, 2, 3, 4], reward_local=0.1, authors={ALICE.hex(): 1})
    rounds = Rounds(folder.metrics)
    assert [each.round for each in rounds.look()] == [1, 2, 3, 4]
    write_rounds(folder, [3], reward_local=0.9, authors={BOB.hex(): 1})
    assert [each.round for each in rounds.look()] == [3]
    assert rounds.table(0, 10)["columns"]["reward_local"] == [0.1, 0.1, 0.9]
    totals = rounds.named["authors"].totals(rounds.column("round"), rounds.weights())
    assert totals == {ALICE.hex(): 2, BOB.hex(): 1}


def test_thinned_file_adds_only_new_rounds(tmp_path):
    folder = RunFolder(tmp_path)
    write_rounds(folder, range(1, 9))
    rounds = Rounds(folder.metrics)
    rounds.look()
    other = RunFolder(tmp_path / "thinned")
    write_rounds(other, [1, 4, 7, 8, 9])
    other.metrics.replace(folder.metrics)
    assert [each.round for each in rounds.look()] == [9]
    assert rounds.table(0, 10)["columns"]["round"] == [1, 4, 7, 8, 9]


def test_reader_skips_damaged_and_partial_lines(tmp_path):
    folder = RunFolder(tmp_path)
    write_rounds(folder, [1])
    with folder.metrics.open("ab") as file:
        file.write(b'{"round": \n["mallory"]\n{"round": "x", "policy_step": 1}\n')
        file.write(json.dumps(record(2).to_dict()).encode())
    rounds = Rounds(folder.metrics)
    rounds.look()
    assert rounds.table(0, 10)["columns"]["round"] == [1]
    with folder.metrics.open("ab") as file:
        file.write(b"\n")
    assert [each.round for each in rounds.look()] == [2]


def test_rounds_api_handles_a_history_with_gaps(tmp_path):
    folder = RunFolder(tmp_path)
    write_rounds(folder, [1, 2, 9, 10, 40])
    with folder.metrics.open("ab") as file:
        file.write(b'\x00\xff{"round": 41, "policy_st\n')
    write_rounds(folder, [55])
    table = told(tmp_path, "rounds")
    assert table["columns"]["round"] == [1, 2, 9, 10, 40, 55]
    assert (table["first"], table["last"]) == (1, 55)
    assert told(tmp_path, "updates?since=10")["rounds"] == [40, 55]


def test_significant_keeps_six_digits():
    values = np.array([0.0, 123456.789, -0.000123456789, 1234567.0, np.nan])
    shown = np.nan_to_num(significant(values, 6)).tolist()
    assert shown == [0.0, 123457.0, -0.000123457, 1234567.0, 0.0]


def test_health_reports_doctor_checks_and_alarms(tmp_path):
    lengths = {"mean_length": lambda n: 10.0 if n < 280 else 40.0}
    odd = {"logprob_mismatch": 0.2, "counters": {"forgetting_alarms": 2.0}}
    write_rounds(RunFolder(tmp_path), range(1, 301), **lengths, **odd)
    health = told(tmp_path, "health")
    checks = {each["what"] for each in health["findings"]}
    assert {"packages", "disk", "key file", "clock", "isolation"} <= checks
    assert all(each["remedy"] for each in health["findings"] if each["level"] != "ok")
    alarms = {each["name"]: each for each in health["alarms"]}
    for name in ("forgetting", "engine gap", "length drift"):
        assert alarms[name]["level"] == "warn"
    assert "Above 0.001" in alarms["engine gap"]["means"]
    assert alarms["length drift"]["value"] == pytest.approx(4)
    assert alarms["refused steps"]["level"] == "ok"
    assert all(each["means"] for each in alarms.values())


def test_log_api_returns_only_the_last_lines(tmp_path):
    folder = RunFolder(tmp_path).create()
    folder.log.write_text("".join(f"line {n}\n" for n in range(100_000)) + "not whole")
    with served(tmp_path) as site:
        last = [f"line {n}" for n in range(99997, 100000)]
        assert site.json("/api/v1/log?lines=3")["lines"] == last
        assert len(site.json("/api/v1/log?lines=100000")["lines"]) == 1000
        folder.log.write_bytes(b"mallory \x1b[2J\xff\n")
        (line,) = site.json("/api/v1/log")["lines"]
    assert line.startswith("mallory \\x1b[2J") and line.isprintable()


def test_peers_api_matches_the_status(tmp_path):
    folder = RunFolder(tmp_path).create()
    peer = {"peer_id": "12D3KooWlarry", "connected": True, "link": "direct"}
    folder.write_status({"state": "running", "peer_id": "12D3KooWme", "peers": [peer], "time": 1.0})
    found = told(tmp_path, "peers")
    assert found["self"]["peer_id"] == "12D3KooWme"
    assert found["peers"] == [{**peer, "connected": False, "link": None}], "it is stopped"


HOSTILE = "</script><script>alert(1)</script>\u202e\ud800\x00\u2028"


@pytest.fixture
def groups(tmp_path):
    """Return a run folder with four groups; the last one was refused."""
    folder, theirs = RunFolder(tmp_path).create(), replace(GROUP, author=BOB.hex())
    hostile = (ShownCompletion(HOSTILE, None, None, False),)
    refused = replace(theirs, origin="refused", in_update=False, reason="It was received before.")
    shown = [
        GROUP,
        replace(GROUP, env="words", reason="All 2 completions have the reward 0."),
        replace(theirs, origin="external", prompt="Seven times SIX"),
        replace(refused, round=12, completions=hostile),
    ]
    write(folder.groups, shown)
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
        (f"author={BOB.hex()[:8].upper()}", [4, 3]),
        ("text=times%20six", [3]),
        ("text=script", [4]),
        ("taught=1", [3, 1]),
        ("taught=0&origin=own", [2]),
        ("text=nowhere", []),
        ("round=12", [4]),
        ("round=13", []),
    ],
)
def test_groups_api_filters_newest_first(groups, query, found):
    answer = told(groups.root, f"groups?{query}")
    assert [each["id"] for each in answer["groups"]] == found
    assert answer["more"] is (query == "limit=2")


def test_groups_api_returns_tokens_and_raw_texts(groups):
    with served(groups.root) as site:
        answer = site.get("/api/v1/groups?limit=4")
    refused, *_, own = answer.json["groups"]
    token = {"text": "2", "logprob": -0.5, "version": 3, "entropy": None}
    assert own["completions"][0]["tokens"][0] == token
    (hostile,) = refused["completions"]
    assert (hostile["text"], hostile["reward"]) == (HOSTILE, None)
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.body.isascii()


def test_new_run_has_no_groups(tmp_path):
    assert told(tmp_path, "groups") == {"groups": [], "more": False, "correction": "better"}


def test_event_stream_sends_new_groups(groups):
    with served(groups.root) as site, closing(site.stream()) as stream:
        stream.until("status")
        write(groups.groups, [GROUP])
        assert stream.until("groups") == {"last": 5}


def test_groups_api_skips_invalid_lines(groups):
    with groups.groups.open("ab") as file:
        file.write(b'mallory\n{"id": 99}\n["x"]\n')
        for damage in ({"id": "x"}, {"completions": 5}, {"author": 5}):
            values = json.loads(GROUP.line(9)) | damage
            file.write(json.dumps(values).encode() + b"\n")
    assert [each["id"] for each in told(groups.root, "groups")["groups"]] == [4, 3, 2, 1]
