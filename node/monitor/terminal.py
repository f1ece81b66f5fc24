"""The console that tables and live views are drawn on."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from node.monitor.printable import printable_lines


class Terminal(Console):
    """A rich console on which a text is only ever text.

    Markup in strings is not read: a name such as ``[/]`` would raise, and ``[link=…]`` be a link.
    What is set out by style is a :class:`rich.text.Text`.
    """

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False)

    def render_str(self, text: str, **options: object) -> Text:
        """A string as it is drawn, so that columns are as wide as what is in them."""
        return super().render_str(printable_lines(text), **options)  # type: ignore[arg-type]

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces of anything drawn; rich's own controls are no text."""
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=printable_lines(segment.text))
            )
