"""Pictures of training runs, logs and states."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradxform as gx
from gallery.frame import AFTER, BAD, BEFORE, OTHER, note


def minimize_in_three_steps(axes: Any) -> None:
    """Descent in a narrow valley, with and without a clip between the gradient and the step."""
    x, y = np.meshgrid(np.linspace(-3.2, 3.2, 80), np.linspace(-2.2, 2.2, 60))
    axes.contour(x, y, np.log(0.3 * x**2 + 8 * y**2 + 0.1), 9, colors=[BEFORE], linewidths=0.8, linestyles="solid")
    for tx, color, label in ((gx.identity(), BAD, "plain"), (gx.clip_global_norm(4.0), AFTER, "clipped")):
        w, path = np.array([-2.8, 0.4]), []
        for _ in range(30):
            path.append(w)
            w = w - 0.124 * tx(w * [0.6, 16.0])
        axes.plot(*np.transpose(path), ".-", color=color, linewidth=1.6, label=label)
    axes.set(xticks=[], yticks=[], ylim=(-1.6, 1.6))
    axes.legend(loc="lower right", ncols=2, framealpha=1, edgecolor="white")


def train_some_variables(axes: Any) -> None:
    """A weight under AdamW: frozen, and with a gradient times zero."""
    import jax.numpy as jnp
    import optax

    adamw = optax.adamw(0.05, weight_decay=0.4)
    for optimizer, color, label in (
        (optax.chain(gx.scale(0.0), adamw), BAD, "scale(0.0)"),
        (gx.jax.freeze(adamw, "w"), AFTER, "freeze"),
    ):
        params = {"w": jnp.ones(1)}
        state, path = optimizer.init(params), []
        for _ in range(40):
            path.append(float(params["w"][0]))
            updates, state = optimizer.update({"w": jnp.ones(1)}, state, params)
            params = optax.apply_updates(params, updates)
        axes.plot(path, color=color, linewidth=2.5, label=label)
    axes.set(xlabel="step", ylabel="weight", ylim=(0.3, 1.15))
    axes.legend(frameon=False, loc="lower left")


def train_with_muon(axes: Any) -> None:
    """Singular values of a matrix with a few strong directions, before and after."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((24, 24)))[0] for _ in range(2))
    gradient = (u * np.geomspace(1, 0.02, 24)) @ v
    for matrix, color, label in (
        (gx.normalize_norm()([gradient])[0], BEFORE, "gradient / norm"),
        (gx.orthogonalize()([gradient])[0], AFTER, "orthogonalize()"),
    ):
        axes.plot(np.linalg.svd(matrix, compute_uv=False), ".-", color=color, linewidth=2, label=label)
    axes.set(xlabel="index", ylabel="singular value", ylim=(0, 1.6))
    axes.legend(frameon=False, loc="upper right")


def error_feedback(axes: Any) -> None:
    """What adds up when few gradients are large and most are small, of the other sign."""
    gradients = np.tile([4.0, -1.0, -1.0, -1.0], 10)
    axes.plot(np.cumsum(gradients), color=BEFORE, linewidth=5, label="gradients")
    runs = ((gx.sign(), BAD, "sign()"), (gx.error_feedback(gx.sign()), AFTER, "error_feedback(sign())"))
    for tx, color, label in runs:
        state, updates = tx.init([np.zeros(1)]), []
        for gradient in gradients:
            (update,), state = tx.update([np.array([gradient])], state)
            updates.append(float(update[0]))
        axes.plot(np.cumsum(updates), color=color, linewidth=2, label=label)
    axes.set(xlabel="step", ylabel="sum", ylim=(-22, 50), yticks=[0])
    axes.legend(frameon=False, loc="upper left")


def transform_updates(axes: Any) -> None:
    """The size of Adam's updates when gradients become large, with and without a clip of the updates."""
    import jax.numpy as jnp
    import optax

    rng = np.random.default_rng(0)
    steps = [jnp.asarray((1.0 + rng.normal(size=50)) * (100.0 if step >= 20 else 1.0)) for step in range(40)]
    for tx, color, label in ((gx.identity(), BAD, "Adam"), (gx.clip_rms(1.0), AFTER, "clip_rms(1.0) after it")):
        optimizer = gx.chain(optax.scale_by_adam(), tx)
        adam, rest = optimizer.init(steps[0])
        ones = jnp.ones_like(steps[0])  # moments in the middle of training
        state, sizes = (adam._replace(count=jnp.int32(10_000), mu=ones, nu=2.0 * ones), rest), []
        for gradient in steps:
            update, state = optimizer.update(gradient, state)
            sizes.append(float(jnp.sqrt(jnp.mean(update**2))))
        axes.plot(sizes, color=color, linewidth=2.5, label=label)
    axes.set(xlabel="step", ylabel="size of the update", ylim=(0, 9))
    axes.legend(frameon=False, loc="upper left")


def only_w1_learns(axes: Any) -> None:
    """Two factors of a product: one learns, what stands behind stop_gradient does not."""
    import jax
    import jax.numpy as jnp

    grad = jax.jit(jax.grad(lambda w: (w["w1"] - gx.stop_gradient(w["w2"] * w["w3"])) ** 2))
    w = {"w1": jnp.array(0.0), "w2": jnp.array(1.5), "w3": jnp.array(2.0)}
    runs: dict[str, list[float]] = {"w1": [], "w2 * w3": []}
    for _ in range(30):
        runs["w1"].append(float(w["w1"]))
        runs["w2 * w3"].append(float(w["w2"] * w["w3"]))
        w = jax.tree.map(lambda value, g: value - 0.08 * g, w, grad(w))
    axes.plot(runs["w2 * w3"], color=BEFORE, linewidth=2.5, label="w2 * w3, behind stop_gradient")
    axes.plot(runs["w1"], color=AFTER, linewidth=2.5, label="w1")
    axes.set(xlabel="step", ylim=(0, 5.6))
    axes.legend(frameon=False, loc="upper right")


def which_gradient_is_not_finite(axes: Any) -> None:
    """Norms by path, one of which is NaN."""
    rng = np.random.default_rng(0)
    grads = {f"layer{i}": size * rng.normal(size=20) for i, size in enumerate((1.0, 0.6, 0.8, 0.4))}
    grads["layer2"][3] = np.nan
    bad = gx.nonfinite_paths(grads)
    norms = gx.norms(grads)
    for place, (path, norm) in enumerate(norms.items()):
        axes.barh(place, max(map(float, np.nan_to_num(list(norms.values())))) if path in bad else norm,
                  color=BAD if path in bad else BEFORE, height=0.75)  # fmt: skip
        if path in bad:
            axes.text(0.15, place, "NaN", color="white", va="center", fontweight="bold")
    axes.set(yticks=range(4), yticklabels=list(norms), xlabel="norm")
    axes.invert_yaxis()


def same_numbers_everywhere(axes: Any) -> None:
    """How far clips are from the right numbers, for gradients of many sizes."""
    import same_numbers

    cases = [same_numbers.case(size, 1000) for size in same_numbers.SIZES]
    names = ("optax", "TensorFlow", "PyTorch")
    for name, label, color in zip(same_numbers.NATIVE, names, ("#9ecae1", OTHER, BAD), strict=True):
        distances = [min(case.native[name], 3e9) for case in cases]
        axes.plot(same_numbers.SIZES, distances, color=color, linewidth=2.2, label=label)
    axes.plot(same_numbers.SIZES, [case.gradxform for case in cases], color="black", linewidth=2.5, label="gradxform")
    axes.set_yscale("symlog", linthresh=1)
    axes.set(
        xscale="log", xlabel="size of elements", ylabel="error in ULP", yticks=[0, 1e3, 1e6, 1e9], ylim=(-0.3, 1e17)
    )
    axes.legend(frameon=False, fontsize=10, loc="upper center", ncols=2, labelspacing=0.2, handlelength=1.2)


def where_does_my_port_go_wrong(axes: Any) -> None:
    """How far a port's gradients are from PyTorch's, before and after each of two corrections."""
    import tempfile
    from pathlib import Path

    import port_hunt

    with tempfile.TemporaryDirectory() as folder:
        found = port_hunt.hunt(Path(folder))
    for comparison, color, label in zip(found, (BAD, OTHER, AFTER), ("as ported", "mean loss", "epsilon"), strict=True):
        axes.plot(list(comparison.judged["gradients"].levels.values()), color=color, linewidth=2.2, label=label)
    axes.set(yscale="log", ylim=(1e-8, 1e4), xlabel="step", ylabel="distance", yticks=[1e-7, 1e-4, 1e-1])
    axes.legend(frameon=False, loc="upper center", ncols=3, fontsize=9, handlelength=1.2, columnspacing=1)


def move_from_torch_to_flax(axes: Any) -> None:
    """A weight of PyTorch, and the kernel that it becomes."""
    weights = {"0.weight": np.random.default_rng(2).normal(size=(3, 6)).astype(np.float32)}
    like = {"hidden": {"kernel": np.zeros((6, 3), np.float32)}}
    moved = gx.from_numpy(weights, like=like, rename=gx.rename_from_torch(like, modules={"0": "hidden"}))
    kernel = moved["hidden"]["kernel"]
    for place, matrix in ((0, weights["0.weight"]), (8.5, kernel)):
        height, width = matrix.shape
        extent = (place, place + width, -height / 2, height / 2)
        axes.imshow(matrix, extent=extent, cmap="Blues", vmin=-2, vmax=2)
    axes.annotate("", (8.2, 0), (6.3, 0), arrowprops={"arrowstyle": "->", "linewidth": 2})
    axes.text(3, 1.9, "0.weight", ha="center")
    axes.text(10, 3.3, "hidden/kernel", ha="center")
    axes.set(xlim=(-0.5, 13), ylim=(-3.2, 4.2))
    axes.axis("off")


def log_norms(axes: Any) -> None:
    """What measure keeps of a clip."""
    tx = gx.measure(gx.clip_global_norm(1.0))
    rng = np.random.default_rng(8)
    state = tx.init(np.zeros(9))
    logs: dict[str, list[float]] = {"norm_before": [], "norm_after": []}
    for step in range(60):
        _, state = tx.update(rng.normal(size=9) * (0.2 + 0.4 * np.sin(step / 9) ** 2), state)
        for name, value in gx.metrics(state).items():
            for kept in logs:
                if name.endswith(kept):
                    logs[kept].append(float(value))
    for (name, values), color in zip(logs.items(), (BEFORE, AFTER), strict=True):
        axes.plot(values, color=color, linewidth=2.2, label=name)
    axes.set(xlabel="step", ylim=(0, 3.1))
    axes.legend(frameon=False, loc="upper right", ncols=2, handlelength=1)


def save_and_move_states(axes: Any) -> None:
    """A moving average that starts in PyTorch and continues in JAX."""
    import jax.numpy as jnp
    import torch

    tx = gx.ema(0.9)
    grads = np.float32(np.sin(np.arange(40) / 6) + np.random.default_rng(4).normal(size=40) * 0.4)
    state, torch_ema, jax_ema = tx.init({"w": torch.zeros(1)}), [], []
    for g in grads[:20]:
        updates, state = tx.update({"w": torch.tensor([g])}, state)
        torch_ema.append(float(updates["w"]))
    state = gx.from_numpy(gx.to_numpy(state), like=tx.init({"w": jnp.zeros(1)}))
    for g in grads[20:]:
        updates, state = tx.update({"w": jnp.array([g])}, state)
        jax_ema.append(float(updates["w"][0]))
    axes.plot(grads, ".", color=BEFORE)
    axes.plot(range(20), torch_ema, color=OTHER, linewidth=2.8)
    axes.plot(range(19, 40), torch_ema[-1:] + jax_ema, color=AFTER, linewidth=2.8)
    axes.axvline(19, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", yticks=[0], ylim=(-1.9, 2.3))
    note(axes, 0.1, 0.9, "ema in PyTorch", OTHER)
    note(axes, 0.53, 0.9, "the same in JAX", AFTER)
