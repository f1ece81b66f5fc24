"""Which of an author's offers are worth a pull, and which of those first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from protocol.announcement import Offer
from swarm.common.bounded import lot

REMEMBERED_FRAMES = 16_384
ATTEMPTS = 3


class WantedOffers:
    """Remembers what was asked for, by author, and chooses among what is left.

    What became of the same frame at another author does not count: whoever announces somebody
    else's frame would keep it from everybody.

    Args:
        secret: gives each node an order of its own among equals, or all would pull the same and
            leave the rest.
        uninformative: want even frames in which no group's claimed rewards differ.
        blind: want frames whatever they claim.
    """

    def __init__(self, secret: bytes, *, uninformative: bool, blind: bool) -> None:
        self._secret = secret
        self._all = uninformative or blind
        self._blind = blind
        self._attempts: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()

    def among(self, author: bytes, offers: Iterable[Offer]) -> Iterator[Offer]:
        """Those that are worth a pull.

        A frame whose claimed rewards do not differ in any group can teach nothing and is left
        alone: its groups have no advantage if the claim is true, and are refused if it is not.
        """
        return (
            offer
            for offer in offers
            if (offer.informative or self._all)
            and self._attempts.get((author, offer.content_id), 0) < ATTEMPTS
        )

    def best(self, author: bytes, offers: Iterable[Offer]) -> Offer:
        """The most informative of those that are worth a pull; there is one."""
        sign = 0 if self._blind else -1
        return min(
            self.among(author, offers),
            key=lambda o: (sign * o.informative, lot(self._secret, o.content_id)),
        )

    def try_once(self, author: bytes, offer: Offer) -> None:
        """Count an attempt: after :data:`ATTEMPTS` it is wanted no more."""
        self._note(author, offer, self._attempts.get((author, offer.content_id), 0) + 1)

    def drop(self, author: bytes, offer: Offer) -> None:
        """Want it no more: it is here, or can never be had."""
        self._note(author, offer, ATTEMPTS)

    def _note(self, author: bytes, offer: Offer, attempts: int) -> None:
        key = author, offer.content_id
        self._attempts[key] = attempts
        self._attempts.move_to_end(key)
        if len(self._attempts) > REMEMBERED_FRAMES:
            self._attempts.popitem(last=False)
