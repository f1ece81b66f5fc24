"""What every table of the configuration is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

Texts = Annotated[tuple[Annotated[str, Strict()], ...], Strict(False)]
Refusals = Annotated[
    tuple[Literal["unlikely", "overlong", "repeating", "trailing", "copied"], ...], Strict(False)
]
Options = dict[str, Any]
DecayRates = Annotated[tuple[Annotated[float, Strict(), Field(ge=0, lt=1)], ...], Strict(False)]


def key(
    default: Any,
    about: str,
    *,
    unit: str = "",
    choices: Sequence[str] = (),
    values: str = "",
    **limits: Any,
) -> Any:
    """A key with its description, default and limits, the unit of its value, and its choices.

    Args:
        values: which ones it takes, in words, where its type does not tell.
    """
    extra: dict[str, Any] = {"unit": unit, "choices": list(choices), "values": values}
    return Field(default, description=about, json_schema_extra=extra, **limits)


class Section(BaseModel):
    """A table of the file: unknown keys, wrong types and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
