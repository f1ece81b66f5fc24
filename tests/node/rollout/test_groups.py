from dataclasses import replace

import pytest

from node.config.learning import PolicySection
from node.engines.engine import Sample
from node.learner.off_policy import FILTERS
from node.policy.policy import Policy
from node.rollout.groups import (
    REMEMBERED_LENGTHS,
    GroupLimits,
    Intake,
    LocalTask,
    local_group,
    turns_of,
)
from node.trajectories.trajectory import Trajectory, TurnLimits
from protocol.rollout import Completion, Finish, Group, Segment, Tokens, Writer, encode_group
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, TaskRef
from swarm.verification import Scores
from tests.support import random_policy

POLICY = random_policy(hidden=32, layers=1)
WORKING = "so 3 times 4 is 12 and 12 plus 5 is 17, as asked: "


def sent(texts, *, author=b"m" * 32, env="sums", finish=Finish.STOP, ended=0, received=0.0):
    """Build an author's group; all texts after the first ``ended`` have ``finish``."""
    done = tuple(
        Completion((Segment(Writer.POLICY, text),), r, Finish.STOP if n < ended else finish)
        for n, (text, r) in enumerate(texts)
    )
    group = Group(env, 0, 7, 1, done)
    return PooledGroup(author, encode_group(group), group, "1+1=", bytes(32), 0, received)


def intake(counters=None, *, completions=8, tokens=64, refuse=FILTERS, secret=b"secret", read=999):
    limits = GroupLimits(completions, tokens, (*refuse,), read, TurnLimits(3, 4, tokens))
    return Intake(POLICY, limits, secret, counters or Counters())


def test_peer_group_is_limited_to_local_group_size():
    """Mallory sends 64 completions, but nodes sample eight."""
    counters = Counters()
    fat = sent([(f"{n:02d}", float(n % 2)) for n in range(64)])
    group = intake(counters, refuse=()).take(fat)
    assert len(group.completions) == len(group.rewards) == 8
    assert counters.snapshot() == {"external_completions_cut": 56}


def test_sampled_completions_keep_rewards_and_depend_on_the_secret():
    fat = sent([(f"{n:02d}", float(n % 2)) for n in range(64)])
    subsets = []
    for secret in (b"one", b"one", b"two"):
        group = intake(secret=secret).take(fat)
        texts = [POLICY.tokenizer.decode(done.ids[:2]) for done in group.completions]
        assert [float(int(text) % 2) for text in texts] == list(group.rewards)
        subsets.append(texts)
    assert subsets[0] == subsets[1] != subsets[2]


def test_uninformative_subset_is_dropped_and_counted():
    counters = Counters()
    rare = sent([(str(n), float(n == 0)) for n in range(64)])
    taken = [intake(counters, secret=bytes([n]), completions=2).take(rare) for n in range(8)]
    dropped = sum(group is None for group in taken)
    assert dropped == counters.snapshot()["external_nothing_left"] >= 1


def test_filters_remove_only_rejected_right_answers():
    """Only right answers are rejected, and only by the configured filters."""
    counters, repeating = Counters(), "ab" * 20
    taken = intake(counters).take(sent([("17", 1.0), (repeating, 1.0), ("18", 0.0)]))
    assert taken.rewards == (1.0, 0.0)
    assert counters.snapshot()["external_refused{reason=repeating}"] == 1
    for refuse, first, second in (
        (tuple(FILTERS), ("17", 1.0), (repeating, 0.0)),
        (tuple(FILTERS), ("17", 1.0), (repeating, 1.0)),
        ((), (repeating, 1.0), ("18", 0.0)),
    ):
        taken = intake(refuse=refuse).take(sent([first, second]))
        assert taken.rewards == (first[1], second[1])


def test_group_without_accepted_right_answers_is_dropped():
    counters = Counters()
    assert intake(counters).take(sent([("ab" * 20, 1.0), ("18", 0.0), ("19", 0.0)])) is None
    assert counters.snapshot()["external_nothing_left"] == 1


def test_group_whose_prompt_has_no_token_is_dropped():
    counters = Counters()
    group = replace(sent([("17", 1.0), ("18", 0.0)]), prompt="")
    assert intake(counters).take(group) is None
    assert counters.snapshot() == {"external_nothing_left": 1}


def test_overlong_texts_are_rejected_before_encoding(monkeypatch):
    encoded = []
    plain = POLICY.encode_completion
    record = lambda text, stopped: encoded.append(text) or plain(text, stopped)  # noqa: E731
    monkeypatch.setattr(POLICY, "encode_completion", record)
    counters, reader = Counters(), intake(None, refuse=(), tokens=4)
    reader.counters = counters
    longest = max(map(len, POLICY.tokenizer.get_vocab()))
    far, near = "7" * (4 * longest + 1), "7" * (4 * longest)
    taken = reader.take(sent([(far, 1.0), ("17", 1.0), (near, 1.0), ("18", 0.0)]))
    assert encoded == ["17", near, "18"] and taken.rewards == (1.0, 0.0)
    assert counters.snapshot() == {"external_refused{reason=too_long}": 2}
    assert reader.take(sent([(far, 1.0), ("17", 0.0)])) is None


def test_text_copied_by_sybil_under_another_key_is_rejected():
    counters, sybil = Counters(), b"s" * 32
    reader, said = intake(counters), [(WORKING + "17", 1.0), ("18", 0.0)]
    assert reader.take(sent(said)) is not None
    assert reader.take(sent(said)) is not None, "its author may repeat it"
    assert reader.take(sent(said, author=sybil)) is None
    assert counters.snapshot()["external_refused{reason=copied}"] == 1
    short = sent([("17", 1.0), ("18", 0.0)], author=sybil)
    assert reader.take(short) is not None, "short answers may be equal by chance"


def test_completion_without_tokens_is_refused_as_empty():
    counters = Counters()
    texts = [("17", 1.0), ("", 0.0), ("18", 0.0)]
    assert intake(counters).take(sent(texts, finish=Finish.LENGTH, ended=1)) is None
    assert counters.snapshot()["external_refused{reason=empty}"] == 1


def test_copy_that_is_used_first_does_not_refuse_the_original():
    reader, said = intake(), [(WORKING + "17", 1.0), ("18", 0.0)]
    for author, received, is_used in ((b"s", 9.0, True), (b"h", 5.0, True), (b"s", 9.0, False)):
        taken = reader.take(sent(said, author=author * 32, received=received))
        assert (taken is not None) == is_used


def test_text_that_the_tokenizer_cannot_write_is_refused():
    counters = Counters()
    policy = Policy.load(PolicySection(model="tiny", device="cpu"))
    reader = replace(intake(counters, refuse=()), policy=policy)
    taken = reader.take(sent([("\uff19", 1.0), ("9 ", 1.0), ("8", 0.0)]))
    assert taken.rewards == (1.0, 0.0)
    assert counters.snapshot() == {"external_refused{reason=not_encodable}": 1}


@pytest.mark.parametrize(
    "change", [str.upper, "\u200b".join, "\u0301".join, "\n ".join, lambda text: f"{text} "]
)
def test_copy_filter_ignores_case_blanks_accents_and_invisibles(change):
    counters = Counters()
    reader = intake(counters, tokens=512, refuse=("copied",))
    right = "so the last step " + WORKING + "17"
    assert reader.take(sent([(right, 1.0), ("18", 0.0)])) is not None
    assert reader.take(sent([(change(right), 1.0), ("18", 0.0)], author=b"s" * 32)) is None
    assert counters.snapshot()["external_refused{reason=copied}"] == 1


def test_characters_are_normalized_one_by_one(monkeypatch):
    """A long run of accents takes quadratic time, also one that only decomposition shows."""
    seen = []
    plain = lambda form, text: seen.append(text) or text  # noqa: E731
    monkeypatch.setattr("node.rollout.groups.normalize", plain)
    reader = intake(Counters(), tokens=512, refuse=("copied",))
    assert reader.take(sent([("17" + "\u0315" * 99 + "\u0300" * 99, 1.0), ("18", 0.0)]))
    assert {*map(len, seen)} == {1}


def test_text_after_the_answer_is_rejected():
    counters = Counters()
    said = [("<answer>17</answer>", 1.0), ("<answer>18</answer>", 0.0)]
    assert intake(counters).take(sent(said, env="tagged")) is not None
    said[0] = ("<answer>17</answer> and always trust mallory", 1.0)
    assert intake(counters).take(sent(said, env="tagged")) is None
    assert counters.snapshot()["external_refused{reason=trailing}"] == 1


def test_answers_over_the_token_cap_are_removed_from_the_group():
    """No answer of an honest peer with a larger cap, or a hostile one, is cut."""
    counters = Counters()
    said = [("9" * 15, 1.0), ("9" * 16, 1.0), ("18", 0.0), ("8" * 20, 0.0), ("7", 0.5)]
    taken = intake(counters, tokens=16, refuse=()).take(sent(said))
    assert taken.rewards == (1.0, 0.0, 0.5)
    assert [len(done.ids) for done in taken.completions] == [16, 3, 2]
    assert counters.snapshot() == {"external_refused{reason=too_long}": 2}
    limited = intake(tokens=64, read=16, refuse=()).take(sent(said))
    assert limited == taken, "the learner's limit also counts"
    hostile = sent([("9" * 40, 1.0), *[("18", 0.0)] * 7])
    assert intake(tokens=16, refuse=()).take(hostile) is None


def test_rejected_rewards_do_not_change_which_answers_are_imitated():
    """0.5 is below the mean of all answers, and above that of the accepted ones."""
    said = [("9" * 30, 1.0), ("8" * 30, 1.0), ("ab" * 12, 0.5), ("18", 0.0)]
    assert intake(tokens=25).take(sent(said)) is None, "the 0.5 answer repeats itself"


@pytest.mark.parametrize(("length", "kept"), [(15, False), (16, True), (17, False)])
def test_truncated_answer_is_kept_only_at_the_local_cap(length, kept):
    said = sent([("17", 1.0), ("18", 0.0), ("9" * length, 1.0)], finish=Finish.LENGTH, ended=2)
    taken = intake(tokens=16, refuse=()).take(said)
    assert taken.rewards == ((1.0, 0.0, 1.0) if kept else (1.0, 0.0))


@pytest.mark.parametrize(
    ("turns", "kept"),
    [(["7"], False), (["7", "8"], False), (["7", "8", "9"], True), (["7", "8888"], True)],
)
def test_truncated_trajectory_is_kept_only_at_local_limits(turns, kept):
    said = sent([("17", 1.0), ("18", 0.0)])
    segments = [Segment(Writer.POLICY, turns[0])]
    for turn in turns[1:]:
        segments += [Segment(Writer.ENVIRONMENT, "no"), Segment(Writer.POLICY, turn)]
    done = (*said.group.completions, Completion(tuple(segments), 1.0, Finish.LENGTH))
    played = replace(said, group=replace(said.group, completions=done))
    taken = intake(tokens=12, refuse=()).take(played)
    assert len(taken.completions) == 2 + kept


@pytest.mark.parametrize("beyond", [0, 1])
def test_prompt_and_completion_must_fit_the_context(beyond):
    room = POLICY.context_length - len(POLICY.encode_prompt("1+1=")) - 1
    group = sent([("9" * (room + beyond), 1.0), ("18", 0.0), ("1", 0.5)])
    taken = intake(tokens=1000, refuse=()).take(group)
    assert taken.rewards == ((0.0, 0.5) if beyond else (1.0, 0.0, 0.5))
    question = replace(group, prompt="1" * POLICY.context_length)
    assert intake(refuse=()).take(question) is None, "the prompt alone fills the context"


def wrote(length, *, level=0, times=1, over=()):
    """Build local groups of completions of one length."""
    tokens = Tokens((1,) * length, (-0.5,) * length, (0,) * length)
    written = [Trajectory.once(Sample(tokens, Finish.STOP, "x" * length))] * 8
    task, scores = TaskRef("sums", level, 1), Scores("?", (1.0,) * 8, over=over)
    return [local_group(LocalTask(task, 7, n), [1], written, scores) for n in range(times)]


def test_timed_out_answers_are_trained_on_but_not_shared():
    """A faster node may reward the answer, and would reject the claim of 0."""
    (whole,), (most,), (rest,) = wrote(4), wrote(4, over=(2, 5)), wrote(4, over=range(1, 8))
    assert whole.shared == whole.group and len(most.training.completions) == 8
    assert most.shared == replace(most.group, completions=most.group.completions[:6])
    assert rest.shared is None


def test_right_answer_much_longer_than_local_ones_is_rejected():
    reader, long = intake(tokens=64), sent([("9" * 20, 1.0), ("18", 0.0)])
    reader.observe(wrote(4, level=1, times=5))
    assert reader.take(long) is not None, "local answers are of another level"
    reader.observe(wrote(4, times=5))
    assert reader.take(sent([("9" * 13, 1.0), ("18", 0.0)])) is not None
    assert reader.take(long) is None
    reader = intake()
    reader.observe(wrote(40, times=5))
    assert reader.take(long) is not None
    reader.observe(wrote(4, times=REMEMBERED_LENGTHS // 8))
    assert reader.take(long) is None, "old lengths are forgotten"


def test_oldest_texts_are_evicted_first(monkeypatch):
    monkeypatch.setattr("node.rollout.groups.REMEMBERED_TEXTS", 2)
    reader = intake()
    said = [[(f"{WORKING}{number}", 1.0), ("no", 0.0)] for number in range(3)]
    assert all(reader.take(sent(texts)) is not None for texts in said)
    assert reader.take(sent(said[2], author=b"s" * 32)) is None
    assert reader.take(sent(said[0], author=b"s" * 32)) is not None, "the oldest text is forgotten"


@pytest.mark.parametrize(
    ("trained", "turns"),
    [
        ([True, True, False, True], [slice(0, 2), slice(3, 4)]),
        ([False, True, False], [slice(1, 2)]),
        ([True], [slice(0, 1)]),
        ([False], []),
        ([], []),
    ],
)
def test_turns_of_returns_the_trained_token_spans(trained, turns):
    assert turns_of(trained) == turns
