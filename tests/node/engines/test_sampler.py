from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from node.engines.engine import Sampling
from node.engines.transformers.decoding import BLOCK, MANY_WORDS, sample_tokens

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
