"""Count launches, copies and collectives of transforms and native functions on accelerators, without one.

    python tests/benchmarks/operations.py --out docs/numbers/tables/operations.md

PyTorch is counted under FakeTensorMode with CUDA tensors, JAX in modules compiled for eight forced devices, TensorFlow
in graphs traced as on a GPU, and MLX in the graphs for its GPU stream.
Nothing is timed, so the numbers are the same on every machine.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "backends"), str(Path(__file__).parents[1])]

SMALL, LARGE = (64, 48), (4096, 8192)


NOTHING = "-"
"""Where there is no native function."""


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def torch_rows() -> list[str]:
    """Launches for 300 small and four large gradients, and the memory for the large ones."""
    import torch
    from operations_natives import CONFLICTS, FORMULAS, TORCH, Ops, is_scalar
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch_counts import Counted, counted
    from without_float64 import indexing

    import gradxform as gx
    from gradxform_torch import private

    iterate = private.muon_iteration()
    ops = Ops(
        torch,
        torch.linalg.vector_norm,
        torch.mean,
        lambda x, dtype: x.to(dtype),
        lambda g: iterate(g, (3.4445, -4.7750, 2.0315), 5, 1e-7),
    )

    def native(function: Callable[..., None], shapes: Sequence[tuple[int, ...]], dtype: str) -> Any:
        with FakeTensorMode():
            parameters = [
                torch.nn.Parameter(torch.empty(s, dtype=getattr(torch, dtype), device="cuda")) for s in shapes
            ]
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter)
            with torch.no_grad(), Counted() as found:
                function(parameters)
        return found

    def by_formula(name: str) -> Callable[..., None]:
        def function(parameters: Sequence[Any]) -> None:
            for parameter in parameters:
                beside = parameter.grad.new_empty(()) if is_scalar(name) else parameter.detach()
                found, *state = FORMULAS[name](ops, parameter.grad, beside)
                torch._foreach_copy_([parameter.grad, *[beside] * len(state)], [found, *state])

        return function

    def of_tasks(name: str, shapes: Sequence[tuple[int, ...]], dtype: str) -> Any:
        with FakeTensorMode(), indexing(), torch.no_grad():
            trees = [[torch.empty(s, dtype=getattr(torch, dtype), device="cuda") for s in shapes] for _ in range(2)]
            with Counted() as found:
                getattr(gx, name)(trees)
        return found

    rows = []
    natives = TORCH | {name: by_formula(name) for name in FORMULAS} | dict.fromkeys(CONFLICTS)
    for expression, function in natives.items():
        for dtype in ("float32", "bfloat16"):
            cells = []
            for shapes in ([SMALL] * 300, [LARGE] * 4):
                if function is None:
                    found = of_tasks(expression, shapes, dtype)
                    cells += [str(found.launches.total()), NOTHING]
                    cells += [_mebibytes(found.peak), NOTHING] if shapes[0] == LARGE else []
                    continue
                tx = gx.parse(expression)
                own = counted(tx, shapes, dtype, "cuda", "updates" if "gradients" in tx.traits.needs else "attach")
                sides = own, native(function, shapes, dtype)
                cells += [str(side.launches.total()) for side in sides]
                cells += [_mebibytes(side.peak) for side in sides] if shapes[0] == LARGE else []
            rows.append(f"| `{expression}` | {dtype} | {' | '.join(cells)} |")
    return rows


# --- JAX -------------------------------------------------------------------------------------------------------------


def jax_rows() -> list[str]:
    """Collectives, the numbers that they move, and temporaries per device, on eight devices."""
    from support import python

    found = json.loads(python("tests/benchmarks/operations.py", "--mesh").stdout.splitlines()[-1])
    rows = []
    for name, dtype, *sides in found:
        cells = [
            NOTHING if side is None else _mebibytes(side[kind]) if kind == "temporary" else str(side[kind])
            for kind in ("moves", "numbers", "temporary")
            for side in sides
        ]
        rows.append(f"| `{name}` | {dtype} | {' | '.join(cells)} |")
    return rows


def mesh() -> None:
    """Print the counts of code compiled for a mesh as JSON; runs in a subprocess."""
    import os

    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    import jax
    import jax.numpy as jnp
    import jax_mesh
    import optax
    from jax.sharding import AxisType, NamedSharding
    from operations_natives import CONFLICTS, FORMULAS, Ops, is_scalar

    import gradxform as gx
    from gradxform_jax import private

    iterate, coefficients = private.muon_iteration(), jnp.asarray((3.4445, -4.7750, 2.0315))
    ops = Ops(jnp, jnp.linalg.norm, jnp.mean, lambda x, dtype: x.astype(dtype), lambda g: iterate(g, coefficients))

    def by_formula(name: str) -> optax.GradientTransformation:
        def update(updates: Any, state: Any, _: Any = None) -> Any:
            found = [FORMULAS[name](ops, updates[leaf], state[leaf]) for leaf in updates]
            return [dict(zip(updates, part, strict=True)) for part in zip(*found, strict=True)]

        def init(params: Any) -> Any:
            return {
                leaf: jnp.zeros((), p.dtype) if is_scalar(name) else jnp.zeros_like(p) for leaf, p in params.items()
            }

        return optax.GradientTransformation(init, update)

    natives: dict[str, Any] = {
        "clip_value(0.5)": optax.clip(0.5),
        "clip_global_norm(1.0)": optax.clip_by_global_norm(1.0),
        "clip_rms(0.1)": optax.clip_by_block_rms(0.1),
        "scale(0.3)": optax.scale(0.3),
        "add_decayed_weights(0.1)": optax.add_decayed_weights(0.1),
        "trace(0.9)": optax.trace(0.9),
        "ema(0.9)": optax.ema(0.9),
        "add_noise(0.1, 0)": optax.add_noise(0.01, 0.0, jax.random.key(0)),
        "chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))": optax.chain(
            optax.clip(0.5), optax.clip_by_global_norm(1.0), optax.scale(-0.1)
        ),
    }
    natives |= {name: by_formula(name) for name in FORMULAS} | dict.fromkeys(CONFLICTS)
    grid = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
    rows = []
    for name, native in natives.items():
        for dtype in ("float32", "bfloat16"):
            with jax.set_mesh(grid):
                spread = {
                    leaf: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(grid, spec))
                    for leaf, (shape, spec) in jax_mesh.LEAVES.items()
                    if len(shape) == 2 or "orthogonalize" not in name
                }
                if native is None:
                    step = jax.jit(getattr(gx, name)).lower([spread, spread])
                    rows.append([name, dtype, _counts(step, jax_mesh.MOVES), None])
                    continue
                both = (_compiled(tx, spread, jax_mesh.MOVES) for tx in (gx.parse(name), native))
                rows.append([name, dtype, *both])
    print(json.dumps(rows))


def _compiled(tx: Any, spread: Any, moves: Any) -> dict[str, int]:
    import jax

    state = jax.eval_shape(tx.init, spread)
    shardings = {leaf.shape: leaf.sharding for leaf in spread.values()}
    state = jax.tree_util.tree_map(
        lambda part: jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=shardings.get(part.shape)), state
    )
    needs = tx.traits.needs if hasattr(tx, "traits") else ()  # native ones declare nothing
    extra = {"gradients": spread} if "gradients" in needs else {}
    return _counts(jax.jit(lambda g, s, extra: tx.update(g, s, g, **extra)).lower(spread, state, extra), moves)


def _counts(lowered: Any, moves: Any) -> dict[str, int]:
    import re

    compiled = lowered.compile()
    found = moves.findall(compiled.as_text())
    sizes = [re.findall(r"\w+\[([\d,]*)\]", shapes) for shapes, _ in found]
    numbers = sum(math.prod(map(int, filter(None, dims.split(",")))) for shape in sizes for dims in shape)
    return {"moves": len(found), "numbers": numbers, "temporary": compiled.memory_analysis().temp_size_in_bytes}


# --- matrices on shards ----------------------------------------------------------------------------------------------

GPT2 = [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 12
"""The hidden matrices of GPT-2 small."""


def shard_rows() -> list[str]:
    """What the first of several processes receives and multiplies to orthogonalize DTensors, its share the largest."""
    import torch
    from support import python
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    import gradxform as gx

    class Received(TorchDispatchMode):
        calls = numbers = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if DTensor in types:
                return NotImplemented
            found = function(*args, **kwargs or {})
            if "c10d" in function.namespace and "wait" not in str(function):
                self.calls += 1
                self.numbers += (found if isinstance(found, torch.Tensor) else args[0]).numel()
            return found

    rows, tx = [], gx.orthogonalize(scale=None)
    for world in (8, 64):
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        mesh = init_device_mesh("cpu", (world,))
        shards = [torch.zeros(length // world, width) for length, width in GPT2]
        leaves = [DTensor.from_local(shard, mesh, [Shard(0)], run_check=False) for shard in shards]
        for name, trees in (("one matrix at a time", [[leaf] for leaf in leaves]), ("all matrices", [leaves])):
            with FlopCounterMode(display=False) as products, Received() as received:
                for tree in trees:
                    tx(tree)
            moved, flops = received.numbers * 4 / 1e6, products.get_total_flops() / 1e9
            rows.append(f"| PyTorch, {world} processes | {name} | {received.calls} | {moved:.3g} | {flops:.4g} |")
        distributed.destroy_process_group()
    return rows + json.loads(python("tests/benchmarks/operations.py", "--shards").stdout.splitlines()[-1])


def mesh_shards() -> None:
    """Print the rows of equal matrices on meshes of eight JAX devices as JSON; runs in a subprocess."""
    import os
    import re

    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    import jax
    import jax_mesh
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import gradxform as gx

    def counts(leaves: Any, tx: Any) -> tuple[int, float, float]:
        compiled = jax.jit(tx).lower(leaves).compile()
        found = jax_mesh.MOVES.findall(re.sub(r"/\*.*?\*/", "", compiled.as_text()))
        sizes = [
            math.prod(map(int, dims.split(","))) for shape, _ in found for dims in re.findall(r"\[([\d,]+)\]", shape)
        ]
        return len(found), sum(sizes) * 4 / 1e6, compiled.cost_analysis()["flops"] / 1e9

    rows = []
    for title, axes in (("Explicit", AxisType.Explicit), ("Auto", AxisType.Auto)):
        grid = jax.make_mesh((8,), ("x",), axis_types=(axes,))
        spec = NamedSharding(grid, PartitionSpec("x", None))
        with jax.set_mesh(grid):
            leaf = jax.ShapeDtypeStruct((512, 512), jax.numpy.float32, sharding=spec)
            alone, every = (
                counts([leaf], gx.orthogonalize(scale=None)),
                counts([leaf] * 16, gx.orthogonalize(scale=None)),
            )
            cells = ("one matrix at a time", *[16 * number for number in alone]), ("all matrices", *every)
            rows += [f"| JAX, {title} mesh | {n} | {k} | {moved:.3g} | {flops:.4g} |" for n, k, moved, flops in cells]
    print(json.dumps(rows))


# --- TensorFlow ------------------------------------------------------------------------------------------------------

FREE = {"Placeholder", "Const", "Identity", "IdentityN", "NoOp", "EnsureShape", "Reshape", "Pack", "Unpack"}
"""Operations that start no kernel on a large array."""
MEDIUM = (1024, 1024)


def _tensorflow_natives() -> dict[str, Callable[..., Any]]:
    import tensorflow as tf
    from keras.optimizers import Muon
    from operations_natives import FORMULAS, Ops

    muon = Muon()
    ops = Ops(tf, tf.norm, tf.reduce_mean, tf.cast, lambda g: muon.zeropower_via_newtonschulz5(g, 5))

    def whole(grads: Any) -> Any:
        return tf.clip_by_global_norm(grads, 1.0)[0]

    def by_formula(name: str) -> Callable[..., Any]:
        return lambda grads, state: [FORMULAS[name](ops, g, m) for g, m in zip(grads, state, strict=True)]

    return {name: by_formula(name) for name in FORMULAS} | {
        "clip_value(0.5)": lambda grads, state: [tf.clip_by_value(g, -0.5, 0.5) for g in grads],
        "clip_global_norm(1.0)": lambda grads, state: whole(grads),
        "clip_norm(1.0)": lambda grads, state: [tf.clip_by_norm(g, 1.0) for g in grads],
        "scale(0.3)": lambda grads, state: [0.3 * g for g in grads],
        "chain(clip_value(0.5), clip_global_norm(1.0), scale(0.3))": lambda grads, state: [
            0.3 * g for g in whole([tf.clip_by_value(g, -0.5, 0.5) for g in grads])
        ],
        "add_decayed_weights(0.1)": lambda grads, state: [g + 0.1 * w for g, w in zip(grads, state, strict=True)],
        "trace(0.9)": lambda grads, state: [0.9 * m + g for g, m in zip(grads, state, strict=True)],
        "ema(0.9)": lambda grads, state: [m + 0.1 * (g - m) for g, m in zip(grads, state, strict=True)],
    }


def tensorflow_rows() -> list[str]:
    """Operations for 300 small leaves, and arrays written for four larger ones, in multiples of the tree."""
    import tensorflow as tf
    from operations_natives import CONFLICTS, FORMULAS, is_scalar
    from tensorflow_counts import all_of, operations, tree

    import gradxform as gx
    from gradxform_tensorflow import running

    def of(name: str, given: Any) -> Sequence[Any]:
        if name in CONFLICTS:
            return all_of(lambda *trees: getattr(gx, name)(trees), given, given)
        tx = gx.parse(name)
        if "gradients" not in tx.traits.needs:
            return operations(tx, given)
        return all_of(lambda updates, gradients: tx.update(updates, gradients=gradients), given, given)

    def cells(found: Sequence[Any], dtype: str) -> tuple[int, float]:
        used = [operation for operation in found if operation.type not in FREE]
        size = math.prod(MEDIUM)
        outputs = [output for operation in used for output in operation.outputs if output.shape.num_elements() == size]
        return len(used), sum(output.dtype.size for output in outputs) / (4 * (4 if dtype == "float32" else 2))

    seen = running.has_only_cpus, running.readable
    running.has_only_cpus, running.readable = lambda: False, lambda tensors: False
    rows = []
    natives = _tensorflow_natives()
    ordered = [name for name in natives if name not in FORMULAS] + [*FORMULAS, *CONFLICTS]
    for name in ordered:
        for dtype in ("float32", "bfloat16"):
            counts = []
            for count, shape in ((300, SMALL), (4, MEDIUM)):
                given = tree(count, shape, dtype)
                leaves = list(given.values())
                counts.append(cells(of(name, given), dtype))
                state = [tf.constant(1.0, leaf.dtype) for leaf in leaves] if is_scalar(name) else leaves
                counts.append(cells(all_of(natives[name], leaves, state), dtype) if name in natives else None)
            ((many, _), natively, (_, wrote), written) = counts
            native = (NOTHING, NOTHING) if natively is None else (f"{natively[0]}", f"{written[1]:.3g}")
            rows.append(f"| `{name}` | {dtype} | {many} | {native[0]} | {wrote:.3g} | {native[1]} |")
    running.has_only_cpus, running.readable = seen
    return rows


# --- MLX -------------------------------------------------------------------------------------------------------------


def _mlx_natives() -> dict[str, Callable[..., Any]]:
    import mlx.core as mx
    from mlx.optimizers import clip_grad_norm

    def whole(grads: Any) -> Any:
        return clip_grad_norm(grads, 1.0)[0]  # type: ignore[no-untyped-call]

    def one(g: Any) -> Any:
        norm = mx.linalg.norm(g)
        return g * mx.minimum(1.0 / (norm + 1e-6), 1.0)

    return {
        "clip_value(0.5)": lambda grads: [mx.clip(g, -0.5, 0.5) for g in grads],
        "clip_global_norm(1.0)": whole,
        "clip_norm(1.0)": lambda grads: list(map(one, grads)),
        "scale(0.3)": lambda grads: [0.3 * g for g in grads],
        "chain(clip_value(0.5), clip_global_norm(1.0), scale(0.3))": lambda grads: [
            0.3 * g for g in whole([mx.clip(g, -0.5, 0.5) for g in grads])
        ],
    }


def mlx_rows() -> list[str]:
    """Primitives for 300 small leaves, eager and compiled, and peak memory for four larger ones."""
    import mlx.core as mx

    import gradxform as gx
    from gradxform_mlx.backend import MLX

    def primitives(step: Callable[..., Any], grads: Sequence[Any]) -> int:
        text = io.StringIO()
        mx.export_to_dot(text, *step(grads))
        return text.getvalue().count("shape=rectangle")

    def memory(step: Callable[..., Any], grads: Sequence[Any]) -> int:
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(step(grads))
        return mx.get_peak_memory() - before

    module = sys.modules[MLX.__module__]
    on_gpu, module.on_gpu = module.on_gpu, lambda: True
    rows = []
    for name, native in _mlx_natives().items():
        for dtype in ("float32", "bfloat16"):
            small, large = (
                [mx.ones(shape, dtype=getattr(mx, dtype)) for _ in range(count)]
                for count, shape in ((300, SMALL), (4, MEDIUM))
            )
            mx.eval(small, large)
            cells = []
            for step in (gx.parse(name), native):
                compiled = mx.compile(step)
                memory(compiled, large)
                used = memory(compiled, large) / sum(leaf.nbytes for leaf in large)
                cells.append((primitives(step, small), primitives(compiled, small), f"{used:.3g}"))
            both = " | ".join(f"{own} | {native}" for own, native in zip(*cells, strict=True))
            rows.append(f"| `{name}` | {dtype} | {both} |")
    module.on_gpu = on_gpu
    return rows


# --- the page --------------------------------------------------------------------------------------------------------


def _mebibytes(count: int) -> str:
    return "0" if count < 2**16 else f"{count / 2**20:.3g}"


def page() -> str:
    """The tables."""
    parts = [
        "## PyTorch, CUDA",
        "\n".join(
            (
                "| transform | dtype | launches, 300 small | native | launches, 4 large | native | MiB | native |",
                "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
                *torch_rows(),
            )
        ),
        "## JAX, eight devices",
        "\n".join(
            (
                "| transform | dtype | collectives | optax | numbers moved | optax | MiB | optax |",
                "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
                *jax_rows(),
            )
        ),
        "## Matrices on shards",
        "\n".join(
            (
                "| | `orthogonalize` of | collectives | MB received | GFLOP |",
                "| --- | --- | ---: | ---: | ---: |",
                *shard_rows(),
            )
        ),
        "## TensorFlow, graphs for a GPU",
        "\n".join(
            (
                "| transform | dtype | operations, 300 small | native | trees written, 4 large | native |",
                "| --- | --- | ---: | ---: | ---: | ---: |",
                *tensorflow_rows(),
            )
        ),
        "## MLX, GPU stream",
        "\n".join(
            (
                "| transform | dtype | primitives, 300 small | native | compiled | native | trees in memory | native |",
                "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
                *mlx_rows(),
            )
        ),
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Print the tables, or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mesh", action="store_true")
    parser.add_argument("--shards", action="store_true")
    given = parser.parse_args()
    if given.mesh or given.shards:
        mesh() if given.mesh else mesh_shards()
        return
    found = page()
    if given.out is None:
        print(found)
        return
    given.out.write_text(f"{found}\n")


if __name__ == "__main__":
    main()
