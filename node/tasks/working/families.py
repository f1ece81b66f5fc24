"""The families that the package brings along, by the names that catalogues use."""

from __future__ import annotations

from node.tasks.working.adding import Adding
from node.tasks.working.climbing import Climbing
from node.tasks.working.halving import Halving
from node.tasks.working.paying import Paying
from node.tasks.working.waiting import Waiting
from node.tasks.working.walking import Walking

FAMILIES = {
    family.__name__.lower(): family
    for family in (Adding, Climbing, Halving, Paying, Waiting, Walking)
}
