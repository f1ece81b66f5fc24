from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.engines.transformers.kv_cache import alike

TEXTS = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 9)), min_size=1, max_size=60)


def padding(lists, lengths, rows) -> int:
    longest = [max(lengths[n] for n in chosen) for chosen in lists]
    pairs = zip(lists, longest, strict=True)
    return sum(rows[n] * (most - lengths[n]) for chosen, most in pairs for n in chosen)


@given(texts=TEXTS, worth=st.integers(1, 5000))
def test_every_text_is_in_one_list_and_each_list_is_worth_having(texts, worth):
    lengths, rows = [t[0] for t in texts], [t[1] for t in texts]
    lists = alike(lengths, worth, rows)
    assert sorted(n for chosen in lists for n in chosen) == list(range(len(texts)))
    whole = padding([list(range(len(texts)))], lengths, rows)
    assert whole - padding(lists, lengths, rows) >= worth * (len(lists) - 1)
    assert len(lists) <= 1 + max(lengths).bit_length()


@given(texts=TEXTS)
def test_where_padding_is_dear_no_text_is_padded_to_twice_its_length(texts):
    lengths = [t[0] for t in texts]
    for chosen in alike(lengths, 1):
        assert max(lengths[n] for n in chosen) < 2 * min(lengths[n] for n in chosen)


@given(texts=TEXTS)
def test_where_it_is_cheap_all_texts_stay_together_and_in_order(texts):
    assert alike([t[0] for t in texts], 1 << 30) == [list(range(len(texts)))]
