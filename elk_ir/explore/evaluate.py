"""Compiling and simulating one point. What points share is kept in the process between them."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elk_ir.chips import Chip
from elk_ir.errors import CapacityError, ElkError
from elk_ir.explore.area import area_proxy_mm2
from elk_ir.explore.task import Outcome, Task, dims_of

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from elk_ir.compiler import Signature
    from elk_ir.tools.cmd_compare import Prepared

T = TypeVar("T")

VARYING = ("compile_cpu_s", "schedule_cpu_s", "compile_peak_rss_bytes")
"""Fields of a result that differ between two runs of the same point."""


@dataclass(frozen=True)
class _Front:
    """A model in te, at some dimensions: the same for all chips that have HBM."""

    name: str
    module: ModuleOp
    signature: Signature


@dataclass(frozen=True)
class _Ready:
    """A model in icca for one chip, with what its policies have found, and tokens of a run."""

    prepared: Prepared
    tokens: int | None


LARGE_BYTES = 600_000_000
"""A process that has more resident collects its garbage before the next point."""

_fronts: OrderedDict[object, _Front | ElkError] = OrderedDict()
_ready: OrderedDict[object, _Ready | ElkError] = OrderedDict()
_LOCK = threading.Lock()  # a Dask worker may have several threads
_group = ""
"""The group of the point before. `enumerate_plans` keeps plan fronts by what they depend on of the
chip; a large model's take up to a gigabyte, so those of a group are dropped when it is over."""


def forget() -> None:
    """Drop everything that this process keeps of the points before: to measure what it is worth."""
    from elk_ir.plan.enumerate import forget_fronts

    with _LOCK:
        _fronts.clear()
        _ready.clear()
        forget_fronts()


def evaluate(task: Task) -> Outcome:
    """The outcome of a point; failures that a user can cause, and defects, are its `error`."""
    with _LOCK:
        return _evaluate(task)


def _evaluate(task: Task) -> Outcome:
    from elk_ir.plan.enumerate import forget_fronts
    from elk_ir.process import peak_rss_bytes, release_memory

    global _group
    started = time.process_time()
    release_memory(LARGE_BYTES)
    if task.group != _group:
        _ready.clear()
        forget_fronts()
        _group = task.group
    result: dict[str, Any] | None = None
    message = task.problem
    if message is None:
        try:
            result = _result(task)
            message = result.pop("error", None)
            if message is not None:
                result = None
        except CapacityError as error:
            # Other points of the sweep say what would fit.
            message = str(error.without_changes())
        except ElkError as error:
            message = str(error)
        except Exception as error:
            # A sweep of hours must not die of one point's defect; the row says what happened.
            message = f"internal error: {type(error).__name__}: {error}"
    if result is not None:
        result = json.loads(json.dumps({k: v for k, v in result.items() if k not in VARYING}))
    return Outcome(task.key, result, message, time.process_time() - started, peak_rss_bytes())


def _result(task: Task) -> dict[str, Any]:
    from elk_ir.compiler import resolve_target
    from elk_ir.process import quiet_collector
    from elk_ir.tools.cmd_compare import compare

    settings, chip = task.settings, task.chip
    assert chip is not None
    target = resolve_target(settings.get("target"), chip)
    policy = settings.get("policy")
    if "stages" in settings:
        fields = _pipelined(task, chip)
    elif target != "ipu" or chip.hbm is None:
        fields = _compiled(task, chip, target)
    else:
        from elk_ir.schedule.policies import EXECUTABLE, REFERENCE

        policy = policy or EXECUTABLE[-1]
        if policy not in (*EXECUTABLE, REFERENCE):
            known = ", ".join((*EXECUTABLE, REFERENCE))
            raise ElkError(f"unknown policy {policy!r}", hint=f"the policies are: {known}")
        with quiet_collector():
            ready = _kept(_ready, _ready_key(task, chip), 2, lambda: _prepare(task, chip))
            budget, seed = settings.get("time_budget_s"), settings.get("seed", 0)
            (fields,) = compare(ready.prepared, [policy], budget, seed)
        if ready.tokens is not None and "time_s" in fields:
            fields |= per_token(fields, ready.tokens)
    return {**fields, **chip_fields(chip)}


def per_token(fields: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Throughput, latency and energy of a run that makes `tokens` tokens."""
    found: dict[str, Any] = {"tokens_per_run": tokens, "latency_per_token_s": fields["time_s"]}
    if fields["time_s"] > 0:
        found["tokens_per_s"] = tokens / fields["time_s"]
    found["energy_per_token_j"] = fields["energy_j"] / tokens
    return found


def chip_fields(chip: Chip) -> dict[str, Any]:
    """What a row says of its chip, for pivots and fronts."""
    return {
        "cores": chip.cores,
        "sram_bytes": chip.cores * chip.sram_per_core_bytes,
        "hbm_bytes_per_s": chip.hbm_bytes_per_s,
        "network_bytes_per_s": chip.network_bytes_per_s,
        "peak_fp16_flops_per_s": chip.peak_flops_per_s("fp16"),
        "area_proxy_mm2": area_proxy_mm2(chip),
    }


def _compiled(task: Task, chip: Chip, target: str) -> dict[str, Any]:
    """The report of a target, or of a chip without HBM, whose programs have no policies."""
    from elk_ir.compiler import NORTHPOLE_OPTIONS, compile_model

    settings = task.settings
    program = compile_model(
        task.model,
        chip=chip,
        target=target,
        policy=settings.get("policy"),
        dims=dims_of(settings),
        kv_capacity=settings.get("kv_capacity"),
        time_budget_s=settings.get("time_budget_s"),
        mapping={k: settings[k] for k in NORTHPOLE_OPTIONS if k in settings},
    )
    return {k: v for k, v in program.report.items() if isinstance(v, int | float | str | dict)}


def _pipelined(task: Task, chip: Chip) -> dict[str, Any]:
    """Spatial pipelining: a model of time (docs/scheduling.md)."""
    from elk_ir.process import quiet_collector
    from elk_ir.spatial import spatial_results

    settings = task.settings
    with quiet_collector():
        (fields,) = spatial_results(
            task.model,
            chip,
            [settings["stages"]],
            dims=dims_of(settings),
            kv_capacity=settings.get("kv_capacity"),
            policy=settings.get("policy") or "elk-full",
        )
    return fields


def _ready_key(task: Task, chip: Chip) -> object:
    dims = tuple(sorted(dims_of(task.settings).items()))
    return (task.model, dims, task.settings.get("kv_capacity"), chip.content_hash())


def _prepare(task: Task, chip: Chip) -> _Ready:
    """Everything that comes before scheduling, the te level shared between chips."""
    from elk_ir.compiler import check_hbm, context, pipeline, run_passes, split_at
    from elk_ir.dialects.chip import ChipAttr
    from elk_ir.passes.icca_schedule_model import tables_of
    from elk_ir.report_json import tokens_per_run
    from elk_ir.tools.cmd_compare import Prepared

    started = time.process_time()
    key = _ready_key(task, chip)
    front = _kept(_fronts, key[:-1], 4, lambda: _front(task, chip))  # type: ignore[index]
    module = front.module.clone()
    module.attributes["icca.chip"] = ChipAttr.from_chip(chip)
    passes = pipeline(chip, kv_capacity=task.settings.get("kv_capacity"))
    _, back = split_at(passes, "te-chunk-attention")
    middle, _ = split_at(back, "icca-schedule")
    run_passes(context(), module, middle, model=front.name)
    check_hbm(module, chip)
    prepared = Prepared(front.name, chip, module, tables_of(module), time.process_time() - started)
    return _Ready(prepared, tokens_per_run(module, front.signature))


def _front(task: Task, chip: Chip) -> _Front:
    from elk_ir.compiler import (
        context,
        import_source,
        pipeline,
        run_passes,
        signature_of,
        split_at,
    )

    module, source = import_source(Path(task.model), chip, dims=dims_of(task.settings))
    signature = signature_of(module)
    passes = pipeline(chip, kv_capacity=task.settings.get("kv_capacity"))
    front, _ = split_at(passes, "te-chunk-attention")
    run_passes(context(), module, front, model=source.name)
    return _Front(source.name, module, signature)


def _kept(
    kept: OrderedDict[object, T | ElkError], key: object, size: int, make: Callable[[], T]
) -> T:
    """What was made for `key`, or made now; the last `size` are kept, failures too."""
    if key in kept:
        kept.move_to_end(key)
        found = kept[key]
    else:
        try:
            found = make()
        except ElkError as error:
            found = error
        kept[key] = found
        while len(kept) > size:
            kept.popitem(last=False)
    if isinstance(found, ElkError):
        raise found
    return found
