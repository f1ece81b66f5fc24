"""The console that tables and live views are drawn on."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from node.monitor.output import printable_lines

LARGEST_WIDTH = 10_000
LEAST_WIDTH = 12
"""Of a column that folds, where what stands in it is as long."""


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

    def print_table(self, table: Table) -> None:
        """Print a table of which every column that does not wrap is whole.

        The others are as narrow as that takes, but no narrower than can be read. A terminal that
        is narrower still breaks lines itself: rich would cut figures short, and leave out columns.
        """
        wide = self.options.update(width=LARGEST_WIDTH)
        least = self.measure(table, options=wide).maximum
        for column in table.columns:
            if not column.no_wrap:
                whole = self._whole(column, wide)
                column.min_width = min(whole, LEAST_WIDTH)
                least -= whole - column.min_width - 1  # rich may round each down by one
        before = self.width
        self.width = max(before, least)
        try:
            self.print(table)
        finally:
            self.width = before

    def _whole(self, column: Column, options: ConsoleOptions) -> int:
        """How wide a column is where nothing in it has to fold."""
        cells = (column.header, *column.cells)
        widest = max(Measurement.get(self, options, cell).maximum for cell in cells)
        return widest if column.max_width is None else min(widest, column.max_width)
