"""The console for tables and live views."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from node.monitor.output import printable_lines

LARGEST_WIDTH = 10_000
LEAST_WIDTH = 12  # minimum columns of a folded column with longer content


class Terminal(Console):
    """A rich console that shows strings literally.

    Markup in strings is ignored: a name such as ``[/]`` would raise, and ``[link=…]`` would be a
    link. Use :class:`rich.text.Text` for styled text.
    """

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False)

    def render_str(self, text: str, **options: object) -> Text:
        return super().render_str(printable_lines(text), **options)  # type: ignore[arg-type]

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=printable_lines(segment.text))
            )

    def print_table(self, table: Table) -> None:
        """Print a table without truncating any column that does not wrap.

        Other columns shrink as needed, but stay wide enough to read. On a narrower terminal the
        terminal breaks the lines; rich would truncate figures and omit columns.
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
        cells = (column.header, *column.cells)
        widest = max(Measurement.get(self, options, cell).maximum for cell in cells)
        return widest if column.max_width is None else min(widest, column.max_width)
