"""Pictures of clips."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradxform as gx
from gallery.frame import AFTER, BAD, BEFORE, OTHER, note


def exploding_gradients(axes: Any) -> None:
    """A gradient on its way back through 64 steps of a recurrent network."""
    recurrent = 1.1 * np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))[0]
    for tx, color, label in ((gx.identity(), BAD, "unclipped"), (gx.clip_norm(1.0), AFTER, "clip_norm(1.0)")):
        g, norms = np.full(32, 32**-0.5), []
        for _ in range(64):
            norms.append(np.linalg.norm(g))
            g = tx(g @ recurrent)
        axes.semilogy(norms, color=color, linewidth=2.5, label=label)
    axes.set(xlabel="steps back in time", ylabel="gradient norm")
    axes.legend(frameon=False)


def clip_by_value(axes: Any) -> None:
    """The elements of a gradient before and after."""
    g = np.random.default_rng(1).normal(size=20_000)
    bins = np.linspace(-3, 3, 49)
    axes.hist(g, bins, color=BEFORE, label="before")
    axes.hist(gx.clip_value(1.0)(g), bins, histtype="step", color=AFTER, linewidth=2, label="clip_value(1.0)")
    axes.set(xlabel="element", ylabel="count", yscale="log", ylim=(5, 4e5), yticks=[1e1, 1e3])
    axes.legend(frameon=False, loc="upper center")


def clip_by_global_norm(axes: Any) -> None:
    """The norm at each of forty steps."""
    rng = np.random.default_rng(4)
    steps = [{"w": rng.normal(size=9) * size} for size in rng.lognormal(-1.0, 0.6, size=40)]
    clip = gx.clip_global_norm(1.0)
    axes.bar(range(40), [gx.global_norm(g) for g in steps], width=0.9, color=BEFORE, label="before")
    axes.bar(range(40), [gx.global_norm(clip(g)) for g in steps], width=0.9, color=AFTER, label="after")
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set(xlabel="step", ylabel="global norm", ylim=(0, 5.5))
    axes.legend(frameon=False, ncols=2, loc="upper right")


def clip_across_pipeline_stages(axes: Any) -> None:
    """The gradients of two stages, each clipped alone, and both together."""
    import jax

    stages = np.float32([[3, 0], [0, 4]])
    clip = gx.clip_global_norm(1.0)
    for place, tx in enumerate((clip, gx.across(clip, "stage"))):
        norms = np.linalg.norm(jax.vmap(tx, axis_name="stage")(jax.numpy.array(stages)), axis=1)
        bars = axes.bar([3 * place, 3 * place + 1], norms, color=[AFTER, OTHER], width=0.85)
        axes.bar_label(bars, [f"{norm:.1f}" for norm in norms])
    axes.set(ylim=(0, 1.3), ylabel="norm of a stage", xticks=[0.5, 3.5], xticklabels=["each alone", "across(...)"])


def clip_each_by_its_norm(axes: Any) -> None:
    """Three gradients, and the circle of the limit."""
    grads = {"a": np.array([2.2, 0.9]), "b": np.array([-1.6, 1.1]), "c": np.array([0.3, -0.6])}
    for tree, color, width in ((grads, BEFORE, 0.016), (gx.clip_norm(1.0)(grads), AFTER, 0.02)):
        ends = np.array(list(tree.values()))
        start = np.zeros(len(ends))
        axes.quiver(start, start, *ends.T, color=color, width=width, angles="xy", scale_units="xy", scale=1)
    turn = np.linspace(0, 2 * np.pi, 100)
    axes.plot(np.cos(turn), np.sin(turn), color="black", linewidth=1)
    axes.set(xlim=(-2.6, 2.6), ylim=(-1.15, 1.45), aspect="equal")
    axes.axis("off")
    note(axes, 0.72, 0.08, "norm 1", "black")


def your_own_function(axes: Any) -> None:
    """An element before and after tanh."""
    g = np.linspace(-3, 3, 101)
    axes.plot(g, g, color=BEFORE, linewidth=2.5, label="before")
    axes.plot(g, gx.elementwise(lambda g: gx.xp(g).tanh(g))(g), color=AFTER, linewidth=2.5, label="elementwise(tanh)")
    axes.set(xlabel="element", ylim=(-4.4, 2.2), yticks=[-1, 0, 1])
    axes.legend(frameon=False, loc="lower right")


def change_the_limit_without_retracing(axes: Any) -> None:
    """Norms under a limit that falls."""
    tx = gx.clip_global_norm(lambda step: 2.0 * 0.95**step)
    rng = np.random.default_rng(5)
    state, before, after = tx.init(np.zeros(9)), [], []
    for size in rng.uniform(0.3, 1.0, size=60):
        g = size * rng.normal(size=9)
        updates, state = tx.update(g, state)
        before.append(np.linalg.norm(g))
        after.append(np.linalg.norm(updates))
    axes.plot(before, color=BEFORE, linewidth=1.8, label="before")
    axes.plot(after, color=AFTER, linewidth=2.2, label="after")
    axes.set(xlabel="step", ylabel="norm", ylim=(0, 5.4))
    axes.legend(frameon=False, ncols=2, loc="upper right")


def tame_spikes(axes: Any) -> None:
    """One element, three of whose gradients are spikes."""
    tx = gx.clip_spikes(threshold=9.0, decay=0.9, warmup=10)
    rng = np.random.default_rng(3)
    elements = rng.normal(size=60)
    elements[[22, 37, 48]] = 30.0, -22.0, 26.0
    state, after = tx.init([np.zeros(1)]), []
    for element in elements:
        (update,), state = tx.update([np.array([element])], state)
        after.append(float(update[0]))
    axes.plot(elements, color=BEFORE, linewidth=2, label="before")
    axes.plot(after, color=AFTER, linewidth=2, label="clip_spikes(9.0, 0.9)")
    axes.set(xlabel="step", ylabel="element", ylim=(-26, 58), yticks=[0])
    axes.legend(frameon=False, loc="upper left")
