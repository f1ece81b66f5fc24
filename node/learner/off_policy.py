"""Own tokens that earlier versions of the policy wrote."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from node.config.learning import LearnerSection
from node.config.registry import Kind
from node.config.schema import Section, key
from node.learner.batches import MicroBatch, Row, TrainingGroup
from node.learner.losses import masked
from protocol.manifest import Extract

MIN_SCORED = 8
"""Trained tokens below which a likelihood tells nothing (GRAIL's sampling check)."""
FLOORS = ((0.5, -3.5), (0.1, -9.0))
"""Quantiles of a completion's log-probs, nats a token, and what they must not fall below."""
MIN_REPEATING = 24
"""Tokens below which repetition is ordinary."""
GRAM = 4
MOST_REPEATED = 0.6
"""Share of runs of four tokens that occurred before in the same completion."""
MOST_TRAILING = 16
"""Characters behind the answer."""
MIN_COPIED = 48
"""Characters below which equal texts of several authors are no wonder."""
MIN_LENGTHS = 32
"""Own completions of a task below which their lengths tell nothing."""
LENGTHS = 2.0
SPARE = 8
"""Tokens; a budget is twice the own completions' long ones, and so many more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion to be imitated.

    Attributes:
        text: what its author wrote.
        ids: the same in this node's tokens, before it is cut.
        extract: how the answer is found in it.
        budget: tokens that it may take; None where that is not known.
        elsewhere: whether another author has sent the same text.
    """

    text: str
    ids: Sequence[int]
    extract: Extract
    budget: int | None
    elsewhere: bool


def overlong(answer: Answer) -> bool:
    """Longer than this node's own completions of the task by far."""
    return answer.budget is not None and len(answer.ids) > answer.budget


def repeating(answer: Answer) -> bool:
    """Running in circles."""
    ids = answer.ids
    if len(ids) < MIN_REPEATING:
        return False
    grams = [tuple(ids[n : n + GRAM]) for n in range(len(ids) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) > MOST_REPEATED


def trailing(answer: Answer) -> bool:
    """Going on behind the answer."""
    match answer.extract:
        case "answer_tag":
            behind = answer.text.rpartition("</answer>")[2]
        case "boxed":
            behind = answer.text.rpartition("\\boxed{")[2].partition("}")[2]
        case "text":
            return False
    return len(behind.strip()) > MOST_TRAILING


def copied(answer: Answer) -> bool:
    """Another author's text, long enough that two do not write it by chance."""
    return answer.elsewhere and len(answer.text) >= MIN_COPIED


FILTERS: dict[str, Callable[[Answer], bool]] = {
    "overlong": overlong,
    "repeating": repeating,
    "trailing": trailing,
    "copied": copied,
}
"""Those that look at a completion before the learner sees it; :func:`unlikely` is the learner's."""


def unlikely(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Completions that this policy finds less likely than any model's honest text; bool ``[B]``.

    A median and a low quantile of the tokens' log-probs, so that single surprises, which there is
    most to learn from, do not count: the form of GRAIL's sampling check, with floors for authors
    who sampled from another model.

    Args:
        logprobs: float32 ``[B, T]``, under this policy.
        mask: bool ``[B, T]``, true on trained tokens.
    """
    lengths = mask.sum(-1)
    ordered = torch.where(mask, logprobs, torch.inf).sort(-1).values
    found = torch.zeros_like(lengths, dtype=torch.bool)
    for quantile, floor in FLOORS:
        place = ((lengths - 1).clamp(min=0) * quantile).long()[:, None]
        found |= ordered.gather(1, place).squeeze(1) < floor
    return found & (lengths >= MIN_SCORED)


def budget(lengths: Sequence[int]) -> int | None:
    """Tokens that a right answer may take, by those of own completions; None for too few."""
    if len(lengths) < MIN_LENGTHS:
        return None
    long = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    return int(LENGTHS * long) + SPARE


@dataclass(frozen=True, slots=True)
class Stale:
    """What becomes of own tokens that the policy has moved away from since it wrote them.

    Attributes:
        treat: of a weight above ``cap``: ``"mask_tokens"`` drops the token, ``"clamp"`` weighs it
            by the cap; ``"mask_sequences"`` gives every token of a completion the geometric mean
            of their weights, and drops them all where that is above.
        cap: upper bound of a weight.
    """

    treat: Literal["mask_tokens", "mask_sequences", "clamp"] = "mask_tokens"
    cap: float = 5.0


def decoupled_weights(prox: Tensor, mu: Tensor, mask: Tensor, stale: Stale) -> Tensor:
    """``w = exp(prox - mu)``, bounded by ``stale``; one where masked out, and no gradient.

    The importance weight of AReaL's decoupled objective (arXiv:2505.24298): it corrects for who
    sampled a token, and leaves to the ratio's clip how far the update may go. All ``[B, T]``. A
    weight of zero drops the token and leaves every denominator as it is.
    """
    drift = prox - mu
    if stale.treat == "mask_sequences":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        drift = (masked(drift, mask).sum(-1, keepdim=True) / length).expand_as(prox)
    weights = drift.exp()
    if stale.treat == "clamp":
        weights = weights.clamp(max=stale.cap)
    else:
        weights = masked(weights, weights <= stale.cap)
    return torch.where(mask, weights, 1.0).detach()


@dataclass(frozen=True, slots=True)
class Span:
    """The versions of the policy that an update leads from and to.

    Attributes:
        version: before it.
        steps: that it is to make, each of which counts the version up.
    """

    version: int
    steps: int


def interpolated_prox(cur: Tensor, mu: Tensor, versions: Tensor, span: Span) -> Tensor:
    """``mu + alpha (cur - mu)``: proximal log-probs of own tokens told by their age; ``[B, T]``.

    AReaL's approximation without a forward pass of the proximal policy. An update of ``k`` steps
    makes version ``v + k`` of version ``v``, and ``alpha = (v - v_mu) / (v + k - v_mu)`` is how far
    along the way from a token's version to the new one the proximal policy lies: 0 for what it
    wrote itself, a half for what the one before the last update wrote.

    Args:
        cur: log-probs when the update begins.
        versions: int64 ``[B, T]``, the policy's version that each token was sampled under.
        span: ``v``, which none of ``versions`` is above, and ``k``.
    """
    age = span.version - versions
    return torch.lerp(mu, cur, age / (age + span.steps)).detach()


def check_versions(groups: Sequence[TrainingGroup], version: int) -> None:
    """Refuse what no policy can have written yet.

    Raises:
        ValueError: a token is of a later version than ``version``.
    """
    latest = max((v for g in groups for c in g.completions for v in c.versions or ()), default=0)
    if latest > version:
        raise ValueError(
            f"a group has tokens of version {latest} of the policy, which is at {version}"
        )


class Correction(Kind, ABC):
    """A rule for the weights of tokens that this node's policy did not write itself.

    Log-probs that an external author claims may lower a weight and must never raise it above what
    it is where nothing is claimed.

    Attributes:
        Options: keys of ``mixture.correction_options``.
        by_use: an external group's gradient also counts only as far as its right answers are
            plausible (:func:`node.learner.off_policy.usefulness`).
        caution: what whoever takes external groups with it is told at the start.
    """

    by_use: ClassVar[bool] = False
    caution: ClassVar[str] = ""

    @abstractmethod
    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights of external tokens, ``[C, T]``, without a gradient; one where masked out.

        Args:
            prox: ``[C, T]``, log-probs under the policy as the update begins.
            entropies: ``[C, T]``, of that policy at each token, nats.
            mask: bool ``[C, T]``, external tokens that are trained.
        """

    def reads(self, advantage: float) -> bool:
        """Whether an external completion of that advantage is read; all are, if nothing is said."""
        return True

    def own(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Likewise of own tokens whose behaviour log-probs are known; one, if nothing is said."""
        return torch.ones_like(prox)


class Uncorrected(Correction):
    """Takes external rollouts for the policy's own, as published in SAPO (arXiv:2509.08721)."""

    caution = (
        "what others wrote is learned as this node's own; where answers are long, or authors are "
        'stronger or weaker, that costs reward: use "better", or mixture.external = 0'
    )

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """One everywhere, ``[C, T]``."""
        return torch.ones_like(prox)


class TisOptions(Section):
    """Of truncated importance sampling."""

    cap: float = key(2.0, "Upper bound of a weight; 1 for external tokens.", gt=0)


class Truncated(Correction):
    """A token weighs ``min(exp(prox - mu), cap)`` where its behaviour log-prob ``mu`` is known."""

    Options = TisOptions
    options: TisOptions

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights, ``[C, T]``; a claim lowers one and never raises it."""
        cap = min(self.options.cap, 1.0)
        return tis_weights(prox, batch.behaviour, mask & batch.known, cap)

    def own(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights, ``[C, T]``."""
        return tis_weights(prox, batch.behaviour, mask, self.options.cap)


def tis_weights(prox: Tensor, mu: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weights ``min(exp(prox - mu), cap)``, one where masked out.

    ``mu`` is the behaviour policy's log-prob. All ``[B, T]``; the result carries no gradient.
    Token-level truncation as in DART (arXiv:2509.23866).
    """
    return torch.where(mask, (prox - mu).exp().clamp(max=cap), 1.0).detach()


SURPRISE = 2.0
"""Nats beyond the entropy up to which a token is one that this policy might have written."""
FALL = 2.0
"""Power of its probability by which a token beyond that counts less."""
NO_USE, FULL_USE = 0.75, 0.9
"""Means over a group's right tokens, up to which it is of no use and from which it is of full."""


def plausibility(prox: Tensor, entropies: Tensor) -> Tensor:
    """``min(1, exp(FALL (log p + H + SURPRISE)))`` of each token; as large as both, no gradient.

    It falls faster than the token's probability, so that an update raises what is improbable by
    next to nothing.

    Args:
        prox: log-probs under this policy, nats.
        entropies: ``H``, of this policy where it would write the token, nats.
    """
    return (FALL * (prox + entropies + SURPRISE).clamp(max=0.0)).exp().detach()


def usefulness(rows: Sequence[Row], sums: Mapping[int, tuple[float, float]]) -> dict[int, float]:
    """Of external groups by their number, in [0, 1]: how plausible that is in them which is right.

    Linear between ``NO_USE`` and ``FULL_USE``. A group in which nothing right is left to read is of
    no use.

    Args:
        sums: by completion, over tokens that are to be imitated: plausibilities, and how many.
    """
    useful = {}
    for row in rows:
        if row.own:
            continue
        numbers = range(row.first, row.first + len(row.completions))
        found = [sums[number] for number in numbers if number in sums]
        tokens = sum(count for _, count in found)
        mean = sum(total for total, _ in found) / tokens if tokens else 0.0
        useful[row.group] = min(1.0, max(0.0, (mean - NO_USE) / (FULL_USE - NO_USE)))
    return useful


NEGLIGIBLE = 1e-6
"""Weights below it would fill the backward pass with denormal numbers, of which each takes a
processor a hundred times as long as another one: text made for that would stop a node."""


class Tapered(Correction):
    """An external answer counts as far as this policy might have written it.

    The weights are those of :func:`tapered_weights`; its group counts by its use beside that.
    """

    by_use = True

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights, ``[C, T]``; a claim lowers one and never raises it."""
        return tapered_weights(
            prox, entropies, batch.behaviour, batch.known, mask, batch.advantages
        )


def tapered_weights(
    prox: Tensor, entropies: Tensor, mu: Tensor, known: Tensor, mask: Tensor, advantages: Tensor
) -> Tensor:
    """Plausibility where ``A > 0``, else ``exp(min(0, sum_t(prox - mu), sum_t(prox + H)))``.

    After Tapered Off-Policy REINFORCE (arXiv:2503.14286). A stronger author's right answers are
    learned however improbable they are here as a whole, which importance weights would keep from
    happening; its wrong ones count only as far as this policy would write them, since pushing down
    what is improbable already moves the probability anywhere.

    How far that is, ``mu`` tells, which is its author's word: one who claims to have found its text
    improbable would have it weigh in full. So the text is also compared with what this policy
    would have written, whose log-prob is ``-H`` at the mean, and the lower of the two counts: no
    claim raises a weight. Of a right answer each token is compared so, with some nats to spare
    (:func:`node.learner.off_policy.plausibility`), or a phrase put in front of it would be
    learned.

    All ``[B, T]``. A weight below ``NEGLIGIBLE`` is zero. One where masked out; no gradient.

    Args:
        entropies: ``H``, ``[B, T]``, of the policy of ``prox`` at each token, nats.
        known: bool ``[B, 1]``, rows whose ``mu`` is claimed.
    """
    claimed = masked(prox - mu, mask & known).sum(-1, keepdim=True)
    expected = masked(prox + entropies, mask).sum(-1, keepdim=True)
    wrong = torch.minimum(claimed, expected).clamp(max=0.0).exp()
    weights = torch.where((advantages < 0)[:, None], wrong, plausibility(prox, entropies))
    return torch.where(mask, masked(weights, weights >= NEGLIGIBLE), 1.0).detach()


class Better(Tapered):
    """Learns external answers that are better than their group's mean, weighed as by ``tapered``.

    Worse ones are not read. In experiments they are most of what comes from outside, and nothing
    is gained from them: that an answer is wrong says little of which of its tokens was, the less
    the longer it is, and a node has wrong answers of its own.
    """

    def reads(self, advantage: float) -> bool:
        """Better ones."""
        return advantage > 0


class Weighting:
    """Weights and proximal log-probs of an update.

    Args:
        config: bounds of the weights of own stale tokens.
        correction: of external rollouts, and of own ones that are not ``decoupled``.
        decoupled: own rollouts may be of earlier versions, and are weighed by
            :func:`node.learner.off_policy.decoupled_weights`, whatever the correction.
        floor: external completions that are :func:`node.learner.off_policy.unlikely` are not
            imitated.
    """

    def __init__(
        self, config: LearnerSection, correction: Correction, *, decoupled: bool, floor: bool
    ) -> None:
        self._config = config
        self._correction = correction
        self._decoupled = decoupled
        self._floor = floor
        self._stale = Stale(config.stale, config.stale_cap)

    def prox(self, cur: Tensor, batch: MicroBatch, span: Span) -> Tensor:
        """Proximal log-probs ``[C, T]``.

        Args:
            cur: ``[C, T]``, the policy's before these tokens' first step.
            span: of the update.
        """
        if not self._decoupled or self._config.prox == "start":
            return cur
        told = interpolated_prox(cur, batch.behaviour, batch.versions, span)
        return torch.where(batch.own & batch.known & (batch.versions >= 0), told, cur)

    def unlikely(self, prox: Tensor, batch: MicroBatch) -> Tensor:
        """External completions that are not imitated for their likelihood, bool ``[C]``."""
        imitated = ~batch.own[:, 0] & (batch.advantages > 0)
        if not self._floor:
            return torch.zeros_like(imitated)
        return imitated & unlikely(prox, batch.mask)

    def weights(self, prox: Tensor, entropies: Tensor, batch: MicroBatch) -> Tensor:
        """Of each token, ``[C, T]``, without a gradient; one where not trained.

        What is replayed weighs as another's would, and no more than ``min(exp(prox - mu), 1)``
        where ``mu`` is known (DART, arXiv:2509.23866).

        Args:
            prox: of :meth:`prox`.
            entropies: ``[C, T]``, of the policy as the update begins.
        """
        own = batch.own & batch.known & batch.mask
        weights = torch.where(
            batch.own,
            self._own(prox, own, batch),
            self._correction.external(prox, entropies, batch.mask & ~batch.own, batch),
        ).masked_fill(self.unlikely(prox, batch)[:, None], 0.0)
        replayed = batch.replayed & batch.known & batch.mask
        most = tis_weights(prox, batch.behaviour, replayed, 1.0)
        return torch.where(replayed, weights.minimum(most), weights)

    def _own(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        if self._decoupled:
            return decoupled_weights(prox, batch.behaviour, mask, self._stale)
        return self._correction.own(prox, mask, batch)
