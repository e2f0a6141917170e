"""The te passes on real graphs: numbers after every pass, layers rolled, nothing left unfused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from elk_ir.dialects.location import node_names
from elk_ir.dialects.te import AppendOp, ContractOp, GlobalOp, RepeatOp
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.frontend.importer import import_model
from elk_ir.frontend.weights import load_weight
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.passes.convert_onnx_to_te import ConvertOnnxToTePass
from elk_ir.pipelines import PIPELINES
from elk_ir.tools.opt_pipeline import parse_passes
from elk_ir.universe import PASSES, lazy

HERE = Path(__file__).parent
MODELS = HERE / "models"
SHARED = HERE.parent.parent / "shared" / "models"
CONTEXT = Context()
STEPS = re.findall(r"[\w-]+(?:\{[^}]*\})?", PIPELINES["te-pipeline"])

Arrays = Mapping[str, np.ndarray]


def steps(text: str) -> tuple[ModulePass, ...]:
    """The passes that a pipeline names."""
    return parse_passes(text, lazy(PASSES), PIPELINES)


def converted(path: Path, dims: Mapping[str, int] | None = None, ins: Arrays | None = None):
    """A model as te, unoptimised."""
    shapes = None if ins is None else {name: a.shape for name, a in ins.items()}
    module = import_model(path, dims=dims, input_shapes=shapes)
    ConvertOnnxToTePass().apply(CONTEXT, module)
    module.verify()
    return module


def evaluated(module: ModuleOp, ins: Arrays, folder: Path) -> dict[str, np.ndarray]:
    """Outputs by ONNX name."""
    return evaluate_te(module, ins, load_weight=lambda a: load_weight(a.to_ref(), folder))


def error(out: Arrays, expected: Arrays) -> float:
    """The largest error, relative to the largest magnitude of each output."""
    worst = 0.0
    for name, wanted in expected.items():
        assert out[name].shape == wanted.shape, name
        difference = np.abs(out[name].astype(np.float64) - wanted.astype(np.float64))
        assert not np.isnan(difference).any(), name
        worst = max(worst, float(difference.max() / np.abs(wanted.astype(np.float64)).max()))
    return worst


def arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and expected outputs beside a model."""
    data = np.load(path.with_suffix(".npz"))
    return (
        {k[3:]: data[k] for k in data.files if k.startswith("in/")},
        {k[4:]: data[k] for k in data.files if k.startswith("out/")},
    )


def find(name: str) -> Path:
    """A bundled model, or one of the shared ones."""
    for folder in (MODELS, SHARED / "tiny"):
        if (path := folder / f"{name}.onnx").exists():
            return path
    pytest.skip(f"{name}.onnx is neither bundled nor in ../shared/models/tiny")


def kinds(module: ModuleOp) -> Counter[str]:
    """How often each operation of te that computes occurs."""
    return Counter(
        op.name[3:] for op in module.walk() if isinstance(op, StructuredOp | AppendOp | RepeatOp)
    )


# Operations of one period and what each period consists of; None where no layers repeat.
LLAMA = {"normalize": 2, "contract": 4, "map": 4, "append": 2, "attention": 1}
GEMMA = {"normalize": 4, "contract": 4, "map": 4, "append": 2, "attention": 1}
OPT = {"normalize": 2, "contract": 4, "map": 3, "append": 2, "attention": 1}
DIT = {"normalize": 2, "contract": 5, "map": 2, "attention": 1}
ENCODER = {"normalize": 2, "contract": 4, "attention": 1}
PERIODS: dict[str, dict[str, int] | None] = {
    "bert_sdpa_static_legacy": ENCODER,
    "dit_tiny_static_dynamo": DIT,
    "gemma2_decode_static_dynamo_op23": None,
    "gemma2_prefill_static_legacy": GEMMA,
    "granite_decode_dyn_legacy": LLAMA,
    "granite_prefill_static_dynamo": LLAMA,
    "llama2_decode_static_dynamo": LLAMA,
    "llama2_prefill_static_legacy": LLAMA,
    "llama3gqa_decode_static_dynamo_fp16": LLAMA,
    "llama3gqa_decode_static_dynamo_op23": LLAMA,
    "opt_decode_static_legacy": OPT,
    "statickv_scatter_dynamo": None,
    "vit_static_legacy": ENCODER,
    "yolo_tiny_static_dynamo": None,
}


@pytest.mark.parametrize("name", PERIODS)
def test_numbers_after_every_pass(name: str) -> None:
    """No pass changes the numbers; a layer becomes the operations that it should."""
    path = find(name)
    ins, expected = arrays(path)
    module = converted(path, ins=ins)
    tolerance = 2e-3 if "fp16" in name else 2e-6
    names = {n for op in module.walk() if isinstance(op, StructuredOp) for n in node_names(op)}
    for step in STEPS:
        for p in steps(step):
            p.apply(CONTEXT, module)
        module.verify()
        assert error(evaluated(module, ins, path.parent), expected) < tolerance, step
    for op in module.walk():
        if isinstance(op, StructuredOp):
            assert set(node_names(op)) <= names
            assert node_names(op), op
    repeats = [op for op in module.walk() if isinstance(op, RepeatOp)]
    period = PERIODS[name]
    if period is None:
        assert not repeats
    else:
        (repeat,) = repeats
        body = [op for op in repeat.body.block.ops if isinstance(op, StructuredOp | AppendOp)]
        assert Counter(op.name[3:] for op in body) == Counter(period)


@pytest.mark.parametrize("left_out", sorted(set(s.partition("{")[0] for s in STEPS)))
def test_every_pass_can_be_left_out(left_out: str) -> None:
    """The pipeline without one of its passes keeps the numbers."""
    path = MODELS / "llama2_decode_static_dynamo.onnx"
    ins, expected = arrays(path)
    module = converted(path)
    for p in steps(",".join(s for s in STEPS if s.partition("{")[0] != left_out)):
        p.apply(CONTEXT, module)
    module.verify()
    assert error(evaluated(module, ins, path.parent), expected) < 2e-6


@pytest.mark.parametrize("option", ["maps", "epilogue"])
def test_elementwise_options(option: str) -> None:
    """Each part of the elementwise fusion can be switched off."""
    path = MODELS / "llama2_decode_static_dynamo.onnx"
    ins, expected = arrays(path)
    module = converted(path)
    for p in steps(f"te-canonicalize,te-fuse-elementwise{{{option}=false}}"):
        p.apply(CONTEXT, module)
    module.verify()
    assert error(evaluated(module, ins, path.parent), expected) < 2e-6


@pytest.mark.parametrize(
    "name",
    ["llama2_decode_static_dynamo", "llama3gqa_prefill_static_legacy", "vit_static_legacy"],
)
def test_merged_products(name: str) -> None:
    """Queries, keys and values are one product, gate and up another; the numbers stay."""
    path = find(name)
    ins, expected = arrays(path)
    module = converted(path)
    for p in steps(",".join(STEPS)):
        p.apply(CONTEXT, module)
    module.verify()
    assert error(evaluated(module, ins, path.parent), expected) < 2e-6
    (repeat,) = [op for op in module.walk() if isinstance(op, RepeatOp)]
    products = [op for op in repeat.body.block.ops if isinstance(op, ContractOp)]
    assert len(products) == 4


# ---------------------------------------------------------------------- more layers


def repeated(model: onnx.ModelProto, start: str, end: str, times: int) -> onnx.ModelProto:
    """`model` with what lies between the values `start` and `end` `times` times in a row.

    Copies have weights of their own, caches of their own, and share what does not depend on
    `start`."""
    rng = np.random.default_rng(0)
    graph = model.graph
    weights = {i.name: i for i in graph.initializer}
    reached, block, last = {start}, [], 0
    for i, node in enumerate(graph.node):
        if reached & set(node.input):
            reached |= set(node.output)
            block.append(node)
        if end in node.output:
            last = i
            break
    copied = [onnx.NodeProto.FromString(n.SerializeToString()) for n in block]
    caches = {n for node in block for n in (*node.input, *node.output) if re.search(r"\.\d+\.", n)}
    caches -= set(weights)
    layers = len({re.findall(r"\.(\d+)\.", n)[0] for n in caches})
    made = {o for node in block for o in node.output}
    before, nodes = end, []
    for c in range(1, times):
        renamed = {start: before}

        def name(old: str, c: int = c, renamed: dict[str, str] = renamed) -> str:
            if old in renamed or (old not in caches and old not in made):
                return renamed.get(old, old)
            if old in caches:
                shift = lambda m: f".{int(m[1]) + c * layers}."  # noqa: E731
                return renamed.setdefault(old, re.sub(r"\.(\d+)\.", shift, old))
            return renamed.setdefault(old, f"{old}__{c}")

        for old in {i for node in block for i in node.input if i in weights}:
            array = numpy_helper.to_array(weights[old])
            if array.dtype.kind == "f" and array.ndim >= 1 and array.size > 16:
                renamed[old] = f"{old}__{c}"
                noise = rng.permutation(array.reshape(-1)).reshape(array.shape)
                graph.initializer.append(numpy_helper.from_array(noise, renamed[old]))
        for node in copied:
            new = onnx.NodeProto.FromString(node.SerializeToString())
            new.name = f"{node.name}__{c}"
            new.input[:] = [name(i) for i in node.input]
            new.output[:] = [name(o) for o in node.output]
            nodes.append(new)
        for values in (graph.input, graph.output):
            for value in [v for v in values if v.name in caches]:
                new = onnx.ValueInfoProto.FromString(value.SerializeToString())
                new.name = name(value.name)
                values.append(new)
        before = name(end)
    behind = list(graph.node)[last + 1 :]
    for node in behind:
        node.input[:] = [before if i == end else i for i in node.input]
    kept = [*list(graph.node)[: last + 1], *nodes, *behind]
    del graph.node[:]
    graph.node.extend(kept)
    del graph.value_info[:]
    onnx.checker.check_model(model)
    return model


def random_inputs(model: onnx.ModelProto, ins: Arrays) -> dict[str, np.ndarray]:
    """The inputs of the original, and random caches."""
    rng = np.random.default_rng(1)
    out = dict(ins)
    for value in model.graph.input:
        if value.name not in out:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            out[value.name] = rng.standard_normal(shape).astype(np.float32)
    return out


@pytest.mark.parametrize(
    ("name", "start", "end", "layers", "period"),
    [
        ("llama2_decode_static_dynamo", "add_6", "add_12", 1, LLAMA),
        ("gemma2_decode_static_dynamo_op23", "mul_2", "add_27", 2, GEMMA),
    ],
)
def test_operations_do_not_depend_on_layers(
    name: str, start: str, end: str, layers: int, period: Mapping[str, int], tmp_path: Path
) -> None:
    """Graphs of more layers are one loop of the same body; Gemma's period is two layers."""
    ins, _ = arrays(MODELS / f"{name}.onnx")
    counts = []
    for times in (3, 7) if layers == 1 else (2, 4):
        model = repeated(onnx.load(MODELS / f"{name}.onnx"), start, end, times)
        inputs = random_inputs(model, ins)
        path = tmp_path / f"{name}_{times}.onnx"
        onnx.save(model, path)
        results = ReferenceEvaluator(model).run(None, inputs)
        assert isinstance(results, list)
        expected = {o.name: np.asarray(r) for o, r in zip(model.graph.output, results, strict=True)}
        module = converted(path)
        for p in steps("te-pipeline"):
            p.apply(CONTEXT, module)
        module.verify()
        assert error(evaluated(module, inputs, tmp_path), expected) < 1e-5
        (repeat,) = [op for op in module.walk() if isinstance(op, RepeatOp)]
        assert repeat.count.value.data == times + (layers == 1)
        body = [op for op in repeat.body.block.ops if isinstance(op, StructuredOp | AppendOp)]
        assert Counter(op.name[3:] for op in body) == Counter(
            {kind: count * layers for kind, count in period.items()}
        )
        states = [g for g in module.ops if isinstance(g, GlobalOp) and g.kind.data == "state"]
        assert len(states) == 2 * layers
        assert all(g.outputs and len(g.outputs) == repeat.count.value.data for g in states)
        counts.append(kinds(module))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama2-70b_L80_b32_s1_kv2048_fp16", marks=pytest.mark.slow),
        "gemma2-27b_L46_b32_s1_kv2048_fp16",
    ],
)
def test_full_size_graphs_become_one_loop(name: str) -> None:
    """The unrolled graphs of the largest models leave one loop, without their weights."""
    path = SHARED / "full" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{name}.onnx is not in ../shared/models/full")
    module = converted(path)
    for p in steps("te-pipeline"):
        p.apply(CONTEXT, module)
    module.verify()
    assert sum(kinds(module).values()) < 40
