"""The failures a user can cause, each one clear message and an exit code; none shows a traceback.

Exit codes (one contract for `elk` and `elk-opt`): 0 done, 1 the input cannot be compiled,
2 wrong usage, 3 the numbers disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

TOO_DEEP = "the input is nested too deeply to be read: regions, types or attributes in each other"
"""What is said where Python's stack is at its end: parsers and printers of IR recurse."""


class ElkError(Exception):
    """Something the user can act on.

    `what` says what is wrong in one sentence; `where` names the place (`file:line:col`, a node, an
    operator, a field); `details` are further lines, indented when printed; `hint` says what to do.
    """

    exit_code: ClassVar[int] = 1

    what: str
    where: str | None
    details: tuple[str, ...]
    hint: str | None

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        details: Iterable[str] = (),
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.details = tuple(details)
        self.hint = hint
        super().__init__(what)

    def detail_lines(self) -> tuple[str, ...]:
        """Lines printed below the message, without indentation."""
        return self.details

    def __str__(self) -> str:
        head = self.what if self.where is None else f"{self.where}: {self.what}"
        lines = [head, *(f"  {line}" for line in self.detail_lines())]
        if self.hint is not None:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle through `args`, which would lose the keyword fields; parallel sweeps
        # send these errors between processes.
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(cls: type[ElkError], args: tuple[object, ...], state: dict[str, object]) -> ElkError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ModelError(ElkError):
    """The model cannot be imported or lowered (invalid, unbound dimension, missing weights)."""


class ChipError(ElkError):
    """A chip description is unknown, malformed or inconsistent."""


class CapacityError(ElkError):
    """The live bytes of a core exceed its SRAM.

    `largest` lists what occupies it, largest first, as (name, bytes); `core` is the first core that
    overflows, or None when all cores of the operator do. What `suggest` was given is asked when
    somebody reads the message, so that nobody else pays for it.
    """

    operator: str
    core: int | None
    needed_bytes: int
    available_bytes: int
    largest: tuple[tuple[str, int], ...]
    finders: tuple[Callable[[], Iterable[str]], ...]
    _changes: tuple[str, ...]

    def __init__(
        self,
        operator: str,
        *,
        needed_bytes: int,
        available_bytes: int,
        core: int | None = None,
        largest: Iterable[tuple[str, int]] = (),
        details: Iterable[str] = (),
        hint: str | None = None,
    ) -> None:
        self.operator = operator
        self.core = core
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.largest = tuple((name, size) for name, size in largest if size)
        self.finders, self._changes = (), ()
        place = "each core" if core is None else f"core {core}"
        super().__init__(
            f"needs {needed_bytes:,} bytes on {place}, which has {available_bytes:,}"
            f" ({needed_bytes - available_bytes:,} too many)",
            where=operator,
            details=details,
            hint=hint,
        )

    def suggest(self, find: Callable[[], Iterable[str]]) -> None:
        """Let `find` say what smallest changes would make it fit, a line each."""
        self.finders = (*self.finders, find)

    def changes(self) -> tuple[str, ...]:
        """The smallest changes with which it fits, as far as they were looked for. They are
        computed here, and take the place of the hint."""
        finders, self.finders = self.finders, ()
        for find in finders:
            self._changes = (*self._changes, *find())
        if self._changes:
            self.hint = None
        return self._changes

    def without_changes(self) -> CapacityError:
        """The same, with nothing to be looked for any more."""
        self.finders = ()
        return self

    def detail_lines(self) -> tuple[str, ...]:
        changes = self.changes()
        lines: list[str] = []
        if self.largest:
            width = max(len(f"{size:,}") for _, size in self.largest)
            lines.append("largest buffers:")
            lines += [f"  {size:>{width},} bytes  {name}" for name, size in self.largest]
        lines += self.details
        if changes:
            lines += ["it would fit with one of these changes:", *(f"  {c}" for c in changes)]
        return tuple(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # What finds changes holds a whole program: it stays here.
        state = {**self.__dict__, "finders": ()}
        return (_rebuild, (type(self), self.args, state))


class NumericsError(ElkError):
    """Two levels, or a program and its expected outputs, disagree beyond the stated tolerance."""

    exit_code: ClassVar[int] = 3


class UsageError(ElkError):
    """The command line does not make sense."""

    exit_code: ClassVar[int] = 2


def check_file_name(name: str, error: type[ElkError] = ElkError) -> None:
    """Raise `error` for a name that no file can have, which Python's own functions refuse with a
    ValueError."""
    if "\0" in name:
        raise error("no file can have this name", where=repr(name))
