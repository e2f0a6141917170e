"""Files appear complete or not at all: they are written under temporary names and renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from elk_ir.errors import ElkError


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def cannot_write(error: OSError, path: Path | str) -> ElkError:
    """The message for a file or folder that can't be written: full disk, no permission, …"""
    what = (error.strerror or str(error)).lower()
    return ElkError(f"cannot be written: {what}", where=str(path))


def failed_output(error: OSError, path: str | None = None) -> str:
    """The same for the output of a command (path: None or "-" is stdout), whose rest is dropped:
    Python must not try to write it once more at exit."""
    if path in (None, "-") and error.filename is None:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    where = error.filename or ("standard output" if path in (None, "-") else path)
    return str(cannot_write(error, str(where)))


@contextmanager
def replacing(path: Path | str, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A stream of what becomes the file at `path` when the block ends; UTF-8 unless binary.

    Whatever leaves the block early (an error, Ctrl-C) leaves what was there before, and no other
    file. Links are followed; a device or pipe is written directly. An existing file keeps its mode.
    Raises ElkError when the file can't be written.
    """
    final = Path(os.path.realpath(path))
    encoding = None if binary else "utf-8"
    mode = "wb" if binary else "w"
    direct = False
    temporary = temporary_name(final)
    try:
        if final.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        direct = final.exists() and not final.is_file()
        with open(final if direct else temporary, mode, encoding=encoding) as stream:
            yield stream
        if not direct:
            if final.exists():
                shutil.copymode(final, temporary)
            temporary.replace(final)
    except OSError as error:
        raise cannot_write(error, path) from None
    finally:
        if not direct:
            with suppress(OSError):  # it was renamed, or could not be made
                temporary.unlink()


def write_text(path: Path | str, text: str) -> None:
    """Write a text file. Raises ElkError when it can't be written; nothing is left of it then."""
    with replacing(path) as stream:
        stream.write(text)
