"""What every table of the configuration is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

Texts = Annotated[tuple[Annotated[str, Strict()], ...], Strict(False)]
Refusals = Annotated[
    tuple[Literal["unlikely", "overlong", "repeating", "trailing", "copied"], ...], Strict(False)
]
DecayRates = Annotated[tuple[Annotated[float, Strict(), Field(ge=0, lt=1)], ...], Strict(False)]


def key(default: Any, about: str, *, unit: str = "", **limits: Any) -> Any:
    """A key with its description, default and limits, and the unit of its value."""
    return Field(default, description=about, json_schema_extra={"unit": unit}, **limits)


class Section(BaseModel):
    """A table of the file: unknown keys, wrong types and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
