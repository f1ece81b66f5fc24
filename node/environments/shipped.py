"""Environments that this package brings."""

from __future__ import annotations

from collections.abc import Mapping

from node.environments.environment import Environment

SHIPPED: Mapping[str, type[Environment]] = {}
