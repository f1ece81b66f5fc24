"""A command line that makes no sense, in the words of every other error."""

from __future__ import annotations

import sys
from typing import Any

import typer

from node.errors import UsageError


def usage_error(error: typer.TyperException) -> UsageError:
    """What typer says of a command line, with the option, its value and the way to its help."""
    context: Any = getattr(error, "ctx", None)
    # the parser's own errors know no command
    command = context.command_path if context else " ".join(["swarm-node", *sys.argv[1:2]])
    remedy = f"See what it takes with: {command} --help."
    parameter, cause = getattr(error, "param", None), error.__cause__
    if parameter is not None and isinstance(cause, ValueError):
        option = f"{command} {max(parameter.opts, key=len)}"
        return _wrong_value(option, cause, remedy)
    what, _, hint = error.format_message().rstrip(".").partition(". ")
    if alike := getattr(error, "possibilities", None):
        what, hint = error.message, f"Did you mean {' or '.join(alike)}?"
    return UsageError(f"{command}: {what}", None, f"{hint} {remedy}".strip())


def _wrong_value(option: str, cause: ValueError, remedy: str) -> UsageError:
    from pydantic import ValidationError

    from node.config.validation_errors import wording

    if not isinstance(cause, ValidationError):
        return UsageError(option, cause, remedy)
    detail = cause.errors()[0]
    return UsageError(option, repr(detail["input"]), f"{wording(detail)}. {remedy}")
