from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from node.engines.engine import Sampling
from node.engines.transformers.decoding import BLOCK, MANY_WORDS, sample_tokens
from node.engines.transformers.kv_cache import alike

SIZES = st.sampled_from([MANY_WORDS, MANY_WORDS + 1, MANY_WORDS + BLOCK - 1, 50_257])


@given(words=SIZES, seed=st.integers(0, 1 << 30), spread=st.sampled_from([0.0, 1.0, 20.0]))
def test_in_a_large_vocabulary_a_token_is_where_the_sums_of_all_words_pass_the_point(
    words, seed, spread
):
    logits = spread * torch.randn(4, words, generator=torch.Generator().manual_seed(seed))
    logits[0, words // 3 :] = float("-inf")
    random = torch.Generator().manual_seed(seed)
    tokens, logprobs = sample_tokens(logits, Sampling(), random.clone_state())
    point = torch.rand((4, 1), generator=random, dtype=torch.float64)
    exact = logits.log_softmax(-1)
    sums = exact.exp().cumsum(-1, dtype=torch.float64)
    assert torch.equal(tokens, torch.searchsorted(sums, point * sums[:, -1:], right=True))
    assert torch.equal(logprobs, exact.gather(-1, tokens))


def test_a_word_that_cannot_come_never_does_in_a_large_vocabulary():
    logits = torch.full((2_000, MANY_WORDS + 3), float("-inf"))
    logits[:, [0, BLOCK - 1, BLOCK, MANY_WORDS + 2]] = 0.0
    tokens, _ = sample_tokens(logits, Sampling(), torch.Generator().manual_seed(0))
    counts = tokens[:, 0].bincount(minlength=MANY_WORDS + 3)
    assert counts.nonzero()[:, 0].tolist() == [0, BLOCK - 1, BLOCK, MANY_WORDS + 2]
    assert counts.max() < 600


TEXTS = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 9)), min_size=1, max_size=60)


def padding(lists, lengths, rows) -> int:
    pairs = zip(lists, [max(lengths[n] for n in chosen) for chosen in lists], strict=True)
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
