"""Off-policy data: filters of peers' answers, stale local tokens and corrections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from node.config.learning import LearnerSection
from node.config.registry import Plugin
from node.config.schema import Section, key
from node.learner.batches import MicroBatch, Row, TrainingGroup
from node.learner.losses import masked
from node.learner.peer_bound import PeerBound
from node.tasks.answers import behind_answer

MIN_SCORED = 8  # Minimum trained tokens of the likelihood check (GRAIL's sampling check).
FLOORS = ((0.5, -3.5), (0.1, -9.0))  # (quantile, minimum log-prob) of a completion, nats per token.
MIN_REPEATING = 24  # Tokens; repetition is normal in shorter completions.
GRAM = 4
MOST_REPEATED = 0.6  # Share of 4-grams that occurred before in the same completion.
MOST_TRAILING = 16  # Characters after the answer.
MIN_COPIED = 48  # Characters; shorter texts of several authors may be equal by chance.
MIN_LENGTHS = 32  # Minimum local completions of a task for a length budget.
LENGTHS = 2.0
SPARE = 8  # Tokens; a budget is LENGTHS times the long local completions plus SPARE.


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion to be imitated, and what the filters read of it.

    ``ids`` is the text in this node's tokens before truncation; ``budget`` limits them if known.
    ``elsewhere``: another author sent the same text.
    """

    text: str
    ids: Sequence[int]
    budget: int | None
    elsewhere: bool


def overlong(answer: Answer) -> bool:
    """Return whether the answer exceeds the budget from local completions."""
    return answer.budget is not None and len(answer.ids) > answer.budget


def repeating(answer: Answer) -> bool:
    """Return whether the answer mostly repeats itself."""
    ids = answer.ids
    if len(ids) < MIN_REPEATING:
        return False
    grams = [tuple(ids[n : n + GRAM]) for n in range(len(ids) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) > MOST_REPEATED


def trailing(answer: Answer) -> bool:
    """Return whether the text continues after the answer."""
    return len(behind_answer(answer.text)) > MOST_TRAILING


def copied(answer: Answer) -> bool:
    """Return whether another author sent the same text, too long to match by chance."""
    return answer.elsewhere and len(answer.text) >= MIN_COPIED


FILTERS: dict[str, Callable[[Answer], bool]] = {
    "overlong": overlong,
    "repeating": repeating,
    "trailing": trailing,
    "copied": copied,
}  # before the learner, which itself applies :func:`unlikely`


def unlikely(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Find completions less likely than honest text of any model, bool ``[B]``.

    GRAIL's sampling check, with floors for authors who sample from another model. Median and low
    quantile do not count single surprising tokens, which teach most. ``logprobs`` (float32) and
    ``mask`` (bool, trained tokens) are ``[B, T]``.
    """
    lengths = mask.sum(-1)
    ordered = torch.where(mask, logprobs, torch.inf).sort(-1).values
    is_low = torch.zeros_like(lengths, dtype=torch.bool)
    for quantile, floor in FLOORS:
        index = ((lengths - 1).clamp(min=0) * quantile).long()[:, None]
        is_low |= ordered.gather(1, index).squeeze(1) < floor
    return is_low & (lengths >= MIN_SCORED)


def budget(lengths: Sequence[int]) -> int | None:
    """Return the maximum tokens of a correct answer; None for too few local lengths."""
    if len(lengths) < MIN_LENGTHS:
        return None
    quantile = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    return int(LENGTHS * quantile) + SPARE


def decoupled_weights(prox: Tensor, mu: Tensor, mask: Tensor, stale: str, cap: float) -> Tensor:
    """Return ``w = exp(prox - mu)``, bounded by ``cap``, ``[B, T]``, no gradient.

    The importance weight of AReaL's decoupled objective (arXiv:2505.24298); one where masked out. A
    weight of zero drops the token without changing a denominator. ``stale`` is ``learner.stale``:
    of a weight above the cap, ``"mask_tokens"`` drops the token and ``"clamp"`` uses the cap.
    ``"mask_sequences"`` gives all tokens of a completion the geometric mean of their weights, and
    drops them all if it is above the cap.
    """
    drift = prox - mu
    if stale == "mask_sequences":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        drift = (masked(drift, mask).sum(-1, keepdim=True) / length).expand_as(prox)
    weights = drift.exp()
    weights = weights.clamp(max=cap) if stale == "clamp" else masked(weights, weights <= cap)
    return torch.where(mask, weights, 1.0).detach()


@dataclass(frozen=True, slots=True)
class Span:
    """Policy ``version`` before an update, and its planned number of ``steps``."""

    version: int
    steps: int


def interpolated_prox(cur: Tensor, mu: Tensor, versions: Tensor, span: Span) -> Tensor:
    """Return local tokens' proximal log-probs ``mu + alpha (cur - mu)``, ``[B, T]``.

    This is AReaL's approximation without a forward pass of the proximal policy. With an update from
    version ``v`` to ``v + k``, ``alpha = (v - v_mu) / (v + k - v_mu)``. It is 0 for tokens of
    version ``v`` and 1/2 for those of the version before the last update. ``cur`` is from the
    update's begin; ``versions`` (int64 ``[B, T]``) are never above ``v``.
    """
    age = span.version - versions
    return torch.lerp(mu, cur, age / (age + span.steps)).detach()


def check_versions(groups: Sequence[TrainingGroup], version: int) -> None:
    """Reject tokens of a policy version above ``version``, with :class:`ValueError`."""
    latest = max((v for g in groups for c in g.completions for v in c.versions or ()), default=0)
    if latest > version:
        raise ValueError(
            f"a group has tokens of version {latest} of the policy, which is at {version}"
        )


class Correction(Plugin, ABC):
    """Off-policy correction: weights of tokens that this policy did not sample.

    A peer's claimed log-probs may lower a weight, but never raise it above its value without a
    claim. ``Options`` has the keys of ``mixture.correction_options``.
    """

    by_use: ClassVar[bool] = False  # whether a peer's group also counts by its :func:`usefulness`
    caution: ClassVar[str] = ""  # warning at the start of a node that uses peers' groups with it

    @abstractmethod
    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Return weights of peers' tokens, ``[C, T]``, one where masked out, no gradient.

        ``prox`` and ``entropies`` (nats) are those of the policy when the update begins. ``mask``
        is true on peers' trained tokens.
        """

    def reads(self, advantage: float) -> bool:
        """Return whether to train on a peer's completion of that advantage; default: all."""
        return True

    def local(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Return weights of local tokens with known behavior log-probs; default: one."""
        return torch.ones_like(prox)


class Uncorrected(Correction):
    """No correction: peers' rollouts count as local, as in SAPO (arXiv:2509.08721)."""

    caution = (
        "peers' completions are treated like local ones; if completions are long, or authors "
        'are stronger or weaker, this costs reward: use "better", or mixture.external = 0'
    )

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        return torch.ones_like(prox)


class TruncatedWeights(Correction):
    """Weight ``min(exp(prox - mu), cap)`` where the behavior log-prob ``mu`` is known.

    For peers' tokens the cap is not above 1, so no claim raises a weight.
    """

    class Options(Section):
        """Options of truncated importance sampling."""

        cap: float = key(
            2.0, "Maximum importance weight of a token. For peers' tokens it is 1.", gt=0
        )

    options: Options

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        return tis_weights(prox, batch.behaviour, mask & batch.known, min(self.options.cap, 1.0))

    def local(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        return tis_weights(prox, batch.behaviour, mask, self.options.cap)


def tis_weights(prox: Tensor, mu: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return truncated importance weights ``min(exp(prox - mu), cap)``, ``[B, T]``.

    Token-level truncation as in DART (arXiv:2509.23866); one where masked out, no gradient.
    """
    return torch.where(mask, (prox - mu).exp().clamp(max=cap), 1.0).detach()


SURPRISE = 2.0  # Nats above the entropy up to which a token is plausible for this policy.
FALL = 2.0  # Power of a less plausible token's probability that reduces its weight.
NO_USE, FULL_USE = 0.75, 0.9  # mean plausibility of correct tokens for usefulness 0 and 1


def plausibility(prox: Tensor, entropies: Tensor) -> Tensor:
    """Return each token's ``min(1, exp(FALL (log p + H + SURPRISE)))``, no gradient.

    It falls faster than the token's probability, so an update hardly raises improbable tokens.
    ``prox`` is this policy's ``log p`` and ``entropies`` its ``H``, in nats and of the same shape.
    """
    return (FALL * (prox + entropies + SURPRISE).clamp(max=0.0)).exp().detach()


def usefulness(rows: Sequence[Row], sums: Mapping[int, tuple[float, float]]) -> dict[int, float]:
    """Return by group number how plausible a peer's correct tokens are, in [0, 1].

    Linear in the mean plausibility between ``NO_USE`` and ``FULL_USE``; 0 without correct tokens.
    ``sums`` holds by completion, over tokens to be imitated, the sum of plausibilities and the
    count.
    """
    by_group = {}
    for row in rows:
        if row.local:
            continue
        numbers = range(row.first, row.first + len(row.completions))
        entries = [sums[number] for number in numbers if number in sums]
        tokens = sum(count for _, count in entries)
        mean = sum(total for total, _ in entries) / tokens if tokens else 0.0
        by_group[row.group] = min(1.0, max(0.0, (mean - NO_USE) / (FULL_USE - NO_USE)))
    return by_group


NEGLIGIBLE = 1e-6  # smaller weights become zero: denormal numbers slow a CPU 100 times


class Tapered(Correction):
    """Weights of :func:`tapered_weights`; groups also count by their usefulness."""

    by_use = True

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        mu, known, advantages = batch.behaviour, batch.known, batch.advantages
        return tapered_weights(prox, entropies, mu, known, mask, advantages)


def tapered_weights(
    prox: Tensor, entropies: Tensor, mu: Tensor, known: Tensor, mask: Tensor, advantages: Tensor
) -> Tensor:
    """Return weights of Tapered Off-Policy REINFORCE (arXiv:2503.14286), ``[B, T]``.

    The weight is the plausibility where ``A >= 0``, else ``exp(min(0, sum_t(prox - mu), sum_t(prox
    + H)))``. A stronger author's correct answers are learned even if they are improbable as a
    whole. Wrong answers count only as far as this policy would sample them: pushing down improbable
    text moves probability anywhere.

    ``mu`` is only the author's claim, and a claim that the text was improbable would raise the
    weight. So the text is also compared with what this policy would sample, whose mean log-prob is
    ``-H``; the lower value counts. Correct answers are compared token by token
    (:func:`plausibility`); otherwise a phrase put in front of one would be learned.

    Weights below ``NEGLIGIBLE`` are zero; they are one where masked out and have no gradient.
    ``known`` (bool ``[B, 1]``) marks rows whose ``mu`` is claimed. ``entropies`` is ``H``, in nats.
    """
    claimed = masked(prox - mu, mask & known).sum(-1, keepdim=True)
    expected = masked(prox + entropies, mask).sum(-1, keepdim=True)
    wrong = torch.minimum(claimed, expected).clamp(max=0.0).exp()
    weights = torch.where((advantages < 0)[:, None], wrong, plausibility(prox, entropies))
    return torch.where(mask, masked(weights, weights >= NEGLIGIBLE), 1.0).detach()


class Better(Tapered):
    """``Tapered``, for peers' answers that are better than their group's mean.

    Worse answers bring no gain in experiments: they say little about which token was wrong.
    """

    def reads(self, advantage: float) -> bool:
        return advantage > 0


@dataclass(frozen=True, slots=True)
class Weighting:
    """Weights and proximal log-probs of an update.

    With ``decoupled``, local rollouts get :func:`decoupled_weights` instead of the correction. With
    ``floor``, peers' completions that are :func:`unlikely` are not imitated. ``bound`` is that of
    peers' tokens.
    """

    config: LearnerSection
    correction: Correction
    _: KW_ONLY
    decoupled: bool
    floor: bool
    bound: PeerBound = PeerBound()  # noqa: RUF009 - frozen

    def prox(self, cur: Tensor, batch: MicroBatch, span: Span) -> Tensor:
        """Return proximal log-probs ``[C, T]``; ``cur`` is from before the first step."""
        if not self.decoupled or self.config.proximal_policy == "start":
            return cur
        approximation = interpolated_prox(cur, batch.behaviour, batch.versions, span)
        return torch.where(batch.local & batch.known & (batch.versions >= 0), approximation, cur)

    def unlikely(self, prox: Tensor, batch: MicroBatch) -> Tensor:
        """Find peers' completions that are too unlikely to be imitated, bool ``[C]``."""
        imitated = ~batch.local[:, 0] & (batch.advantages > 0)
        if not self.floor:
            return torch.zeros_like(imitated)
        return imitated & unlikely(prox, batch.mask)

    def weights(
        self, prox: Tensor, entropies: Tensor, batch: MicroBatch, reached: Tensor
    ) -> Tensor:
        """Return each token's weight, ``[C, T]``, one where not trained, no gradient.

        ``entropies`` is from the policy when the update begins. Tokens that have ``reached`` their
        bound have none.
        """
        known = batch.local & batch.known & batch.mask
        if self.decoupled:
            stale, cap = self.config.stale, self.config.importance_cap
            local = decoupled_weights(prox, batch.behaviour, known, stale, cap)
        else:
            local = self.correction.local(prox, known, batch)
        external = self.correction.external(prox, entropies, batch.mask & ~batch.local, batch)
        weights = torch.where(batch.local, local, external)
        return weights.masked_fill(self.unlikely(prox, batch)[:, None] | reached, 0.0)
