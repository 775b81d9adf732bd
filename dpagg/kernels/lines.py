"""Lines of text taken apart where they are summed.

Text with a delimiter and no quotes means one thing only, and Arrow takes it apart several times faster than Spark
does; so a pass over such lines ships the lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dpagg.kernels.rows import MALFORMED
from dpagg.kernels.schema import Numeric, Schema
from dpagg.kernels.text_cells import BLANKS, numbers_of

__all__ = ["LineFormat"]


@dataclass(frozen=True)
class LineFormat:
    """How a line is cut into cells.

    Attributes
    ----------
    names : tuple of str
        Of the columns, in order; they differ by more than case.
    delimiter : str
        One character between cells.
    null_values : tuple of str
        Texts that mean that a cell is missing; an empty one is in any case.
    """

    names: tuple[str, ...]
    delimiter: str
    null_values: tuple[str, ...] = ()

    def parsed(
        self, batches: Iterable[pa.RecordBatch], schema: Schema, *, with_label: bool
    ) -> Iterator[pa.RecordBatch]:
        """Return the declared columns of batches of lines, as `dpagg.kernels.encoding` takes them.

        Parameters
        ----------
        batches : iterable of RecordBatch
            Lines in the first column.
        schema : Schema
            Which columns, and which are numbers.
        with_label : bool
            Whether the label is among them; without it no cell of it is read.

        Returns
        -------
        iterator of RecordBatch
            Blank lines have no row, unless they hold a delimiter. A line with another number of cells has a row at the
            end of its batch that is marked as malformed, and null otherwise.
        """
        stored = {name.lower(): name for name in self.names}
        wanted = {feature.name: isinstance(feature, Numeric) for feature in schema.features}
        if with_label:
            wanted[schema.label.name] = True
        taken = {name: stored[name.lower()] for name in wanted}
        for batch in batches:
            table, num_malformed = self._cells(batch.column(0), list(dict.fromkeys(taken.values())))
            rest = pa.nulls(num_malformed)
            columns = {
                name: pa.concat_arrays([_typed(table.column(taken[name]), is_number), rest.cast(_kind(is_number))])
                for name, is_number in wanted.items()
            }
            marks = np.zeros(table.num_rows + num_malformed, dtype=np.bool_)
            marks[table.num_rows :] = True
            yield pa.RecordBatch.from_pydict(columns | {MALFORMED: pa.array(marks)})

    def _cells(self, lines: pa.Array, columns: list[str]) -> tuple[pa.Table, int]:
        """The cells of some columns as text, and how many lines have not as many cells as there are columns."""
        # The first column is there so that a table without columns keeps its rows.
        columns = columns or [self.names[0]]
        # Delimiters alone make a row whose cells are all missing, be they blanks.
        blanks = BLANKS.replace(self.delimiter, "")
        told = pc.greater(pc.binary_length(pc.ascii_ltrim(lines, characters=blanks)), 0)
        # Offsets of 64 bits: a batch of long lines may have more than 2 GB.
        bare = lines.filter(told).cast(pa.large_binary())
        empty, end = pa.scalar(b"", bare.type), pa.scalar(b"\n", bare.type)
        ended = pc.binary_join_element_wise(bare, empty, end)
        text = ended.buffers()[2]
        skipped = 0

        def skip(row: csv.InvalidRow) -> str:
            nonlocal skipped
            skipped += 1
            return "skip"

        kind = pa.string()
        if len(ended) == 0:
            return pa.table({name: pa.array([], kind) for name in columns}), 0
        found = csv.read_csv(
            pa.BufferReader(text),
            # One block: a line may be as long as it likes.
            read_options=csv.ReadOptions(column_names=list(self.names), use_threads=False, block_size=text.size + 1),
            parse_options=csv.ParseOptions(delimiter=self.delimiter, quote_char=False, invalid_row_handler=skip),
            convert_options=csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(columns, kind),
                null_values=["", *self.null_values],
                strings_can_be_null=True,
                check_utf8=False,
            ),
        )
        return found, skipped


def _kind(is_number: bool) -> pa.DataType:
    return pa.float64() if is_number else pa.string()


def _typed(column: pa.ChunkedArray, is_number: bool) -> pa.Array:
    cells = column.combine_chunks()
    if isinstance(cells, pa.ChunkedArray):
        cells = pa.concat_arrays(cells.chunks) if cells.num_chunks else pa.array([], cells.type)
    return numbers_of(cells) if is_number else cells
