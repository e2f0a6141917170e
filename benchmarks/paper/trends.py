"""What Elk's evaluation found, and whether the rows of a sweep show it.

A judge takes the rows of its sweep, and of all sweeps by name; it gives whether they agree with
the published trend (None: nothing published to compare with) and a sentence with the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
Records = Sequence[Record]
Verdict = tuple[bool | None, str]

HBM = "hbm.bandwidth_bytes_per_s"
PORT = "network.port_in_bytes_per_s"
REFERENCE = "elk-full"

UTILISATION = {
    "basic": 0.347,
    "static": 0.4642,
    "elk-dyn": 0.5197,
    "elk-full": 0.624,
    "ideal": 0.6438,
}
"""Published HBM utilisation of decoding steps, on average (Elk, MICRO'25)."""

TIMES = {"basic": 1.87, "static": 1.37, "ideal": 0.9484}
"""Published times of decoding steps over those of Elk-Full, on average."""

CLOSE = 0.1
"""How far a figure may be from the published one (relative; utilisations: absolute) to agree."""


def short(value: object) -> str:
    """A setting for people: names of models without their ends, large numbers with 4 digits."""
    if isinstance(value, float) and abs(value) >= 1e6:
        return f"{value:.4g}"
    return Path(value).stem.split("_")[0] if isinstance(value, str) else str(value)


def by_line(
    records: Records, x: str, lines: Sequence[str], field: str = "time_s"
) -> dict[str, dict[float, float]]:
    """A field (seconds) by x, of each line; points that failed are left out."""
    found: dict[str, dict[float, float]] = {}
    for r in records:
        if r["status"] == "ok":
            line = ", ".join(short(r.get(n)) for n in lines) or "time"
            found.setdefault(line, {})[float(r[x])] = float(r[field])
    return {n: dict(sorted(v.items())) for n, v in found.items()}


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def policies(records: Records) -> list[str]:
    """The policies of rows, in their order."""
    return list(dict.fromkeys(str(r["policy"]) for r in records if r["status"] == "ok"))


def _of(records: Records, policy: str) -> Records:
    return [r for r in records if r.get("policy") == policy]


def _each(records: Records, judge: Any) -> Verdict:
    """A judge for each policy: all must agree."""
    found = [(name, judge(_of(records, name))) for name in policies(records)]
    good = all(verdict for _, (verdict, _) in found)
    return good, ". ".join(f"`{name}`: {text}" for name, (_, text) in found)


def judge_hbm(records: Records, _: Mapping[str, Records]) -> Verdict:
    """Diminishing returns on both networks; a mesh congests earlier."""
    return _each(records, _hbm)


def _hbm(records: Records) -> Verdict:
    lines = by_line(records, HBM, ("chip",))
    good, parts, gains = True, [], []
    for name, points in lines.items():
        t = list(points.values())
        first, last = t[0] - t[1], t[-2] - t[-1]
        good = good and first > last and t[0] > t[-1]
        gains.append(t[0] / t[-1])
        parts.append(
            f"{name} {t[0] * 1e3:.3g} → {t[-1] * 1e3:.3g} ms, the first step saves"
            f" {first / t[0]:.0%}, the last {last / t[-2]:.1%}"
        )
    if len(gains) == 2:
        good = good and gains[1] <= gains[0] * 1.001
        parts.append(f"bandwidth gains {gains[0]:.2f}x on all-to-all, {gains[1]:.2f}x on meshes")
    return good, "; ".join(parts)


def judge_scaling(records: Records, _: Mapping[str, Records]) -> Verdict:
    """More HBM helps more with more network, and the other way round."""
    return _each(records, _scaling)


def _scaling(records: Records) -> Verdict:
    ports = sorted({float(r[PORT]) for r in records})
    rates = sorted({float(r[HBM]) for r in records})
    t = {(float(r[PORT]), float(r[HBM])): float(r["time_s"]) for r in records}
    slow = t[ports[0], rates[0]] / t[ports[0], rates[-1]]
    fast = t[ports[-1], rates[0]] / t[ports[-1], rates[-1]]
    little = t[ports[0], rates[0]] / t[ports[-1], rates[0]]
    much = t[ports[0], rates[-1]] / t[ports[-1], rates[-1]]
    steps = [
        t[b] / t[a]
        for a in t
        for b in t
        if (a[0] == b[0] and rates.index(b[1]) == rates.index(a[1]) + 1)
        or (a[1] == b[1] and ports.index(b[0]) == ports.index(a[0]) + 1)
    ]
    worse = sum(s > 1.01 for s in steps)
    return fast >= slow and much >= little, (
        f"the range of HBM gains {slow:.2f}x with the slowest network, {fast:.2f}x with the"
        f" fastest; the range of networks gains {little:.2f}x with the slowest HBM,"
        f" {much:.2f}x with the fastest; {worse} of {len(steps)} single steps to more of either are"
        " over 1 % slower, which is the policy's doing"
    )


def judge_cores(records: Records, _: Mapping[str, Records]) -> Verdict:
    """More cores are faster, less than in proportion."""
    return _each(records, _cores)


def _cores(records: Records) -> Verdict:
    t = next(iter(by_line(records, "cores", ()).values()))
    cores, times = list(t), list(t.values())
    gain, more = times[0] / times[-1], cores[-1] / cores[0]
    falls = all(b <= a * 1.02 for a, b in pairwise(times))
    return falls and gain > 1, f"{more:.2f} times the cores are {gain:.2f} times as fast"


def judge_dit(records: Records, others: Mapping[str, Records]) -> Verdict:
    """DiT-XL gains from cores, and less than LLMs from better preloading."""
    good, text = _each(records, _cores)
    own, llm = _lead(records), _lead(others.get("core-count", ()))
    if own is None or llm is None:
        return good, text
    return bool(good) and own <= llm, (
        f"{text}. elk-full over basic: {own:.2f}x here, {llm:.2f}x for Llama-2-13B"
    )


def _lead(records: Records) -> float | None:
    """By how much elk-full is faster than basic over the same points."""
    slow, fast = (
        by_line(_of(records, p), "cores", ()).get("time", {}) for p in ("basic", REFERENCE)
    )
    both = [slow[x] / fast[x] for x in slow if x in fast]
    return geometric(both) if both else None


def cases_of(records: Records) -> dict[tuple[str, int, int], dict[str, Record]]:
    """Rows by (model, batch, past) and policy."""
    cases: dict[tuple[str, int, int], dict[str, Record]] = {}
    for r in records:
        if r["status"] == "ok":
            case = (
                short(r["model"]),
                int(r.get("dim.batch") or 0),
                int(r.get("dim.past_sequence_length") or 0),
            )
            cases.setdefault(case, {})[str(r["policy"])] = r
    return cases


def judge_policies(records: Records, _: Mapping[str, Records]) -> Verdict:
    """elk-full against the others, by geometric means over the cases that both have."""
    cases = cases_of(records)
    names = policies(records)
    best = REFERENCE if REFERENCE in names else names[0]
    parts = []
    ratios: dict[str, float] = {}
    for name in names:
        both = [c for c in cases.values() if name in c and best in c]
        ratios[name] = geometric([c[name]["time_s"] / c[best]["time_s"] for c in both])
        published = f" ({TIMES[name]:.2f}x published)" if name in TIMES else ""
        parts.append(f"{name} takes {ratios[name]:.2f}x{published}")
    order = all(r >= 0.999 for n, r in ratios.items() if n not in ("ideal", "search"))
    close = all(abs(ratios[n] / TIMES[n] - 1) <= CLOSE for n in TIMES if n in ratios)
    told = f"against {best}, over {len(cases)} cases: " + "; ".join(parts)
    if order and not close:
        told += ". The order is the published one, the distances are not"
    return order and close, told


def judge_use(records: Records, _: Mapping[str, Records]) -> Verdict:
    """Utilisation of HBM rises from policy to policy, in the published order."""
    use = {p: mean([r["hbm_utilization"] for r in _of(records, p)]) for p in policies(records)}
    order = [use[p] for p in UTILISATION if p in use]
    parts = [
        f"{name} uses {use[name]:.0%} of HBM" + (f" ({UTILISATION[name]:.0%} published)")
        for name in UTILISATION
        if name in use
    ]
    if "search" in use:
        parts.append(f"search {use['search']:.0%}")
    told, rises = "; ".join(parts), all(b >= a - 0.005 for a, b in pairwise(order))
    close = all(abs(use[p] - UTILISATION[p]) <= CLOSE for p in UTILISATION if p in use)
    if rises and not close:
        told += ". The order is the published one, the values are not"
    for a, b in pairwise([p for p in UTILISATION if p in use]):
        if use[b] < use[a] - 0.005:
            told += f". {b} does not use more than {a}, which here has the same machine and network"
    return rises and close, told


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def judge_training(records: Records, _: Mapping[str, Records]) -> Verdict:
    """Twice the multiply-adds help more than a third more bandwidth."""
    return _each(records, _training)


def _training(records: Records) -> Verdict:
    lines = by_line(records, "macs_per_cycle_fp16", (HBM,))
    cheap, *_, dear = lines.values()
    flops = cheap[min(cheap)] / cheap[max(cheap)]
    memory = cheap[min(cheap)] / dear[min(dear)]
    slowest = max(records, key=lambda r: float(r["time_s"]))
    busy, moved = float(slowest["hbm_utilization"]), float(slowest["hbm_bytes"])
    return (
        flops > memory,
        f"twice the multiply-adds: {flops:.2f}x; 4/3 of the bandwidth: {memory:.2f}x (the slowest"
        f" step moves {moved / 1e9:.1f} GB and keeps HBM busy for {busy:.0%} of its time)",
    )


def judge_chips(records: Records, _: Mapping[str, Records]) -> Verdict:
    """What a network of twice or half the speed does to each chip."""
    parts = []
    for chip in dict.fromkeys(str(r["chip"]) for r in records if r["status"] == "ok"):
        own = [r for r in records if r["chip"] == chip and r["status"] == "ok"]
        name = REFERENCE if any(r["policy"] == REFERENCE for r in own) else str(own[0]["policy"])
        rows = sorted(_of(own, name), key=lambda r: float(r[PORT]))
        if len(rows) == 4:
            half, one, _twice, four = (float(r["time_s"]) for r in rows)
            use = float(rows[1]["hbm_utilization"])
            parts.append(
                f"{chip} uses {use:.0%} of its HBM; half the network makes it {half / one:.2f}x"
                f" as slow, four times {one / four:.2f}x as fast"
            )
    return None, f"under {REFERENCE}: " + "; ".join(parts)
