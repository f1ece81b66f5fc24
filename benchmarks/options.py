"""The options that benchmarks of one policy share."""

from __future__ import annotations

import argparse


def arguments(description: str | None) -> argparse.Namespace:
    """Read the command line; ``description`` is the benchmark's own doc string."""
    return parser(description).parse_args()


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options, to which a benchmark may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="tiny", help="as policy.model")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--completions", type=int, default=8, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="sampled in each completion")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument(
        "--engine", default="transformers", help="as engine.backend, where it matters"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser
