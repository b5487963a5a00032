"""Rows of a Parquet file, within limits: the file may come from elsewhere.

Parquet writes equal values once, so that a file of some kilobytes may stand for gigabytes. Text is therefore read as
dictionaries, few rows at a time, and a row has at most as many bytes as a line of JSON may have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO

from autosync.jsonio import MAX_LINE_BYTES

ROWS_AT_ONCE = 16
MAX_GROUP_BYTES = 64 * 2**20
"""The most bytes of a group of rows before compression."""
MAX_GROUP_VALUES = 8_000_000
"""The most values of a group of rows: each takes eight bytes, however few the file has for it."""
MAX_LISTS_BYTES = 2**28
"""The most bytes of a column with lists of texts, if each text were as long as the column."""


class TooLargeError(Exception):
    """A group of rows, or a row, has more than a reader takes."""

    RULE = (
        f"a group of rows has at most {MAX_GROUP_BYTES} bytes and {MAX_GROUP_VALUES} values, and a row "
        f"{MAX_LINE_BYTES} bytes"
    )


def rows_of(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file; raise TooLargeError at the first group or row that is too large.

    A file that is broken otherwise raises an ArrowException, an OSError, a ValueError or an OverflowError.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file)
    for field in metadata.schema.to_arrow_schema():
        _check_type(field.type)
    for number in range(metadata.num_row_groups):
        _check_group(metadata.row_group(number))
    texts = [
        column.path for column in metadata.schema if column.physical_type == "BYTE_ARRAY" and "." not in column.path
    ]
    file.seek(0)
    table = pq.ParquetFile(file, read_dictionary=texts, page_checksum_verification=True)
    for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
        sizes = [_row_bytes(column) for column in batch.columns]
        largest = max((sum(of_row) for of_row in zip(*sizes, strict=True)), default=0)
        if largest > MAX_LINE_BYTES:
            raise TooLargeError(f"a row of {largest} bytes")
        yield from batch.to_pylist()


def _check_group(group: Any) -> None:
    """Raise TooLargeError if a group of rows has more than a reader takes."""
    columns = [group.column(number) for number in range(group.num_columns)]
    num_values = sum(column.num_values for column in columns)
    if group.total_byte_size > MAX_GROUP_BYTES or num_values > MAX_GROUP_VALUES:
        raise TooLargeError(f"a group of rows with {group.total_byte_size} bytes and {num_values} values")
    for column in columns:
        # pyarrow reads no dictionaries within lists, so each of these texts may be as long as the column.
        is_list_of_texts = column.physical_type == "BYTE_ARRAY" and "." in column.path_in_schema
        if is_list_of_texts and column.total_uncompressed_size * column.num_values > MAX_LISTS_BYTES:
            what = f"{column.num_values} texts in {column.total_uncompressed_size} bytes"
            raise TooLargeError(f"a group of rows with lists of {what}")


def _check_type(kind: Any) -> None:
    """Raise ValueError if a column is neither of text nor of numbers, nor of lists of them."""
    import pyarrow as pa

    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (is_text or is_number or pa.types.is_null(kind)):
        raise ValueError(f"a column of {kind}")


def _row_bytes(array: Any) -> list[int]:
    """Return how many bytes the value of each row takes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        lengths = [length or 0 for length in pc.binary_length(array.dictionary).to_pylist()]
        return [0 if place is None else lengths[place] for place in array.indices.to_pylist()]
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        sums = [0, *itertools.accumulate(_row_bytes(array.values))]
        return [sums[end] - sums[begin] for begin, end in itertools.pairwise(array.offsets.to_pylist())]
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return [length or 0 for length in pc.binary_length(array).to_pylist()]
    return [8] * len(array)
