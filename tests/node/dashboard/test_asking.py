"""Questions on the page run in a separate process and only for the owner."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from node.dashboard import app as asking
from node.dashboard.access import COOKIE
from swarm.common.util import import_path
from tests.node.dashboard.asked import LONG, OWN_PAGE, Asked, answered, answering, trained
from tests.node.dashboard.browser import Site, served

ASK = "/api/v1/ask"
HOSTILE = "It is 4.\n<script>\u202e$(reboot)"


@pytest.fixture
def site(tmp_path):
    trained(tmp_path / "run")
    with served(tmp_path / "run", **{"policy.model": "tiny"}) as found:
        yield found


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_both_models_stream_scored_answers_to_a_task_sample(site):
    before = contents(site.folder.root)
    reply = answered(site, family="gcd", base="1")
    kinds = [each["event"] for each in reply]
    assert kinds[0] == "stage" and kinds[-1] == "end"
    asked = next(each for each in reply if each["event"] == "question")
    assert asked["family"] == "gcd" and asked["prompt"].endswith("Answer:")
    models = [(each["name"], each["base"]) for each in reply if each["event"] == "model"]
    assert models == [("step-00000010", False), ("tiny", True)]
    rewards = [each["reward"] for each in reply if each["event"] == "opinion"]
    assert len(rewards) == 2 and all(0.0 <= each <= 1.0 for each in rewards)
    assert "text" in kinds
    assert contents(site.folder.root) == before, "a question changes no file"
    assert not site.counters.snapshot()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "none", "X-Asked-By": "page"},
        {"Sec-Fetch-Site": "same-origin"},
        {"X-Asked-By": "page"},
        {"Sec-Fetch-Site": "cross-site", "X-Asked-By": "page", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_cross_site_request_starts_no_computation(site, headers):
    answer = site.get(f"{ASK}?question=hi", headers)
    assert answer.status == 403 and "own page" in answer.json["error"]
    assert answering() == []


def test_the_documented_headers_are_sufficient(site):
    page = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `ask` |")]
    headers = dict(re.findall(r"`([\w-]+): ([\w-]+)`", row))
    assert site.get(f"{ASK}?question=%20", headers).status == 400, "the question is blank"


@pytest.mark.parametrize(
    ("query", "said"), [("question=%20", "omit it"), ("question=" + "x" * 1001, "at most 1000")]
)
def test_bad_question_or_head_request_starts_nothing(site, query, said):
    answer = site.get(f"{ASK}?{query}", OWN_PAGE)
    assert answer.status == 400 and said in answer.json["error"]
    assert site.get(ASK, OWN_PAGE, "HEAD").status == 200 and answering() == []


@pytest.mark.parametrize("lacking", ["manifest", "checkpoints", "root"])
def test_ask_reports_a_missing_checkpoint(tmp_path, lacking):
    folder = trained(tmp_path / "run")
    getattr(folder, lacking).rename(tmp_path / "elsewhere")
    with served(folder.root) as site:
        answer = site.get(ASK, OWN_PAGE)
    assert answer.status == 409 and "no checkpoint of the policy yet" in answer.json["error"]


def test_concurrent_question_is_rejected(site):
    with closing(Asked(site, question=HOSTILE, family="gcd")) as first:
        first.until("stage")
        answer = site.get(ASK, OWN_PAGE)
        assert answer.status == 409 and "another question is running" in answer.json["error"]
        reply = list(first)
    assert reply[-1]["event"] == "end"
    by_event = {each["event"]: each for each in reply}
    asked, said, model = (by_event[event] for event in ("question", "opinion", "model"))
    assert (asked["prompt"], asked["family"]) == (HOSTILE, None), "the prompt is used unchanged"
    assert said["reward"] is None and "not found among the swarm" in said["unscored"]
    assert model["name"] == "step-00000010"
    with closing(until_taken(site)) as later:
        assert later.until("stage"), "the next question can start"


def paused(asked: Asked) -> list[psutil.Process]:
    """Suspend the process of an answer; return it and its children."""
    asked.until("question")
    (process,) = answering()
    found = [process, *process.children(recursive=True)]
    process.suspend()
    return found


def gone(processes: list[psutil.Process]) -> bool:
    assert processes
    return not psutil.wait_procs(processes, timeout=120)[1]


def until_taken(site: Site) -> Asked:
    while (asked := Asked(site)).status != 200:
        asked.close()
    return asked


def test_closing_the_page_ends_the_answer(site):
    with closing(Asked(site)) as asked:
        workers = paused(asked)
    assert gone(workers), "the answer's processes end, including the verifier"
    until_taken(site).close()
    assert not site.counters.snapshot(), "closing the page is not a failure"


def test_node_exit_ends_the_answer(tmp_path):
    trained(tmp_path)
    with served(tmp_path) as site:
        asked = Asked(site)
        workers = paused(asked)
    assert gone(workers)
    asked.close()


def test_answer_has_a_time_limit(site, monkeypatch):
    monkeypatch.setattr(asking, "SECONDS", 10.0)
    asked = Asked(site)
    workers = asked.until("stage") and answering()
    assert "not done after 10 seconds" in asked.until("error")["error"]
    assert gone(workers)
    asked.close()


def test_repeated_questions_are_rate_limited(site, monkeypatch):
    monkeypatch.setattr(asking, "SECONDS", 0.01)
    statuses = []
    while len(statuses) < 1000 and 429 not in statuses:
        with closing(Asked(site)) as asked:
            list(asked)
            statuses.append(asked.status)
    assert statuses.count(200) == asking.MOST_BEGUN and statuses[-1] == 429


def test_node_counts_a_failure_without_logging_the_question(site, monkeypatch, caplog):
    monkeypatch.setattr(asking, "MODULE", "node.evaluation.no_such_module")
    reply = answered(site, question="a secret of the owner's")
    assert "it ended before it was done: exit status 1" in reply[-1]["error"]
    assert site.counters.snapshot() == {"dashboard_ask_failures": 1}
    assert "exit status 1" in caplog.text and "secret" not in caplog.text


def test_public_address_requires_the_cookie_to_ask(tmp_path):
    trained(tmp_path)
    with served(tmp_path, "0.0.0.0:0") as site:
        assert site.get(ASK, OWN_PAGE).status == 401
        inside = site.get("/" + site.told[0].partition("/?")[2].join(["?", ""]))
        cookie = inside.headers["set-cookie"].partition(";")[0]
        assert cookie.startswith(COOKIE)
        # At such an address browsers send no Sec-Fetch-Site header.
        asked = {"Cookie": cookie, "X-Asked-By": "page"}
        assert site.get(ASK, {"Cookie": cookie}).status == 403
        reply = site.get(f"{ASK}?family=no-such", asked)
    assert reply.status == 200
    last = json.loads(reply.body.splitlines()[-1])
    assert "This swarm has: chain_sum" in last["error"], "the error lists the task families"


def test_answer_process_has_low_priority_and_ends_with_stdin(tmp_path):
    folder = trained(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", asking.MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": import_path()},
    ) as process:
        request = {"folder": str(folder.root), "config": {}, "question": None, "family": None}
        process.stdin.write(json.dumps({**request, "base": False}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["event"] == "stage"
        assert psutil.Process(process.pid).nice() == 19
        if sys.platform == "linux":
            assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"
            soft, _ = psutil.Process(process.pid).rlimit(psutil.RLIMIT_DATA)
            assert 0 < soft < psutil.virtual_memory().total
        process.stdin.close()
        assert process.wait(LONG) == 1
