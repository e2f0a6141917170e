"""A cache bounded by bytes."""

from __future__ import annotations

from array import array

from elk_ir.plan.kept import kept


def test_the_last_used_stay() -> None:
    made: list[int] = []

    @kept(10, len)
    def text(n: int) -> str:
        made.append(n)
        return "x" * n

    assert [len(text(n)) for n in (4, 5, 4, 3)] == [4, 5, 4, 3]  # 5 is the oldest: dropped for 3
    assert made == [4, 5, 3]
    assert len(text(4)) == 4 and made == [4, 5, 3]
    assert len(text(5)) == 5 and made == [4, 5, 3, 5]


def test_one_that_is_too_large_stays_until_the_next() -> None:
    made: list[int] = []

    @kept(10, len)
    def text(n: int) -> str:
        made.append(n)
        return "x" * n

    for n in (4, 40, 40, 5, 40):
        text(n)
    assert made == [4, 40, 5, 40]


def test_what_is_alive_is_shared() -> None:
    made: list[int] = []

    @kept(10, len, shared=True)
    def numbers(n: int) -> array[int]:
        made.append(n)
        return array("b", bytes(n))

    held = numbers(8)
    numbers(9)
    assert numbers(8) is held and made == [8, 9]
    del held
    numbers(9)
    numbers(8)
    assert made == [8, 9, 9, 8]
