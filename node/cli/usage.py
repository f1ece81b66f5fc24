"""A command line that makes no sense, in the words of every other error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from node.errors import UsageError


def check_text(arguments: Sequence[str]) -> None:
    """See that the arguments and the name of this folder are text.

    They reach models, the wire and files of text, which take nothing else.

    Raises:
        UsageError: bytes of one are not in the encoding of this locale.
    """
    folder = ""
    with suppress(FileNotFoundError):  # where it was deleted, whatever needs it says so
        folder = str(Path.cwd())
    told = [("folder", folder), *(("argument", text) for text in arguments)]
    for what, text in told:
        if any("\ud800" <= character <= "\udfff" for character in text):
            remedy = "Rename it, or choose a locale that has its characters: LC_ALL=C.UTF-8."
            raise UsageError(f"{what} that is no text in this locale", text, remedy)


def usage_error(error: typer.TyperException, program: str) -> UsageError:
    """What typer says of a program's command line, with the option, its value and the way to its
    help."""
    context: Any = getattr(error, "ctx", None)
    # the parser's own errors know no command
    command = context.command_path if context else " ".join([program, *sys.argv[1:2]])
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

    from node.config.schema import wording

    if not isinstance(cause, ValidationError):
        return UsageError(option, cause, remedy)
    detail = cause.errors()[0]
    return UsageError(option, repr(detail["input"]), f"{wording(detail)}. {remedy}")
