"""Read the rows of CSV files of any size in bounded memory; damage concerns one row, not the file."""

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from detloom.components.example_gen.sources.json_values import show
from detloom.schemas.errors import InputError

Columns = tuple[tuple[str, ...], bool]  # names, and whether the first line of the file is a header
MAX_LINE_BYTES = 1 << 17  # VIA has a polygon in one row; Python's csv reads at most this in one value


def read_lines(file: BinaryIO, where: str) -> Iterator[tuple[int, str | None]]:
    """Yield number and text of each remaining non-empty line; None for a line that is too long or not text.

    If the file has a header, it must have been read; numbers then continue at 2.
    """
    number = 1 if file.tell() else 0
    try:
        while data := file.readline(MAX_LINE_BYTES):
            number += 1
            if len(data) == MAX_LINE_BYTES and not data.endswith(b"\n"):
                while (data := file.readline(1 << 20)) and not data.endswith(b"\n"):
                    pass
                yield number, None
                continue
            try:
                line = data.decode("utf-8" if number > 1 else "utf-8-sig").rstrip("\r\n")
            except UnicodeDecodeError:
                yield number, None
                continue
            if line:
                yield number, line
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error}).") from None


def split_line(line: str) -> list[str] | None:
    """Return the values of one line; None if a quote is not closed."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True), None)
    except csv.Error:
        return None


def read_row(line: str | None, columns: Sequence[str]) -> dict[str, str] | str:
    """Return values by column, or an error text for the row."""
    values = split_line(line) if line is not None else None
    if values is None:
        return f"must be UTF-8, shorter than {MAX_LINE_BYTES} bytes, with paired quotes"
    if len(values) != len(columns):
        return f"must have {len(columns)} values, got {len(values)}: {show(line)}"
    return dict(zip(columns, values, strict=True))


def parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
