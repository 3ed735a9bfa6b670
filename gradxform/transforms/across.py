"""Norms and conditions over devices, for trees that the framework does not know to be sharded."""

from __future__ import annotations

from typing import Any

from gradxform.core.factory import factory
from gradxform.core.foreign import inside
from gradxform.core.group import Group, devices_of
from gradxform.core.transform import Context, GradientTransformation, declared
from gradxform.core.tree import Tree
from gradxform.core.where import Where, check, chosen

_SPLITS = ("tree", "leaves")


@factory(tx=inside)
def across(tx: Any, axis: Any, *, split: str = "tree", replicated: Where | None = None) -> GradientTransformation:
    r"""Apply a transform to a tree that is spread over devices, with norms and conditions over the whole tree.

    The norm is ``sum(norm(device) ** p) ** (1 / p)`` over the devices:

    .. math:: n = \Bigl(\sum_{\text{devices}} n_{\text{device}}^p\Bigr)^{1/p}

    Use it for manual sharding: pipeline stages, experts, ZeRO, `jax.shard_map`. If the framework knows the whole array
    (JAX's sharded arrays under `jit`, PyTorch's DTensors, FSDP2), norms already cover it. Data parallelism needs no
    `across` either: average the loss or the gradients first.

    Each norm costs one collective of float64 numbers. All devices get the same bits and make the same decisions. Means
    and norms over axes (`centralize`, `clip_adaptive`, ``axes=``) stay local to the device, as do norms inside other
    libraries' transforms. `add_noise` draws independently on each device.

    Args:
        tx: A transform, or any object with `init` and `update`. Call it on each device at the same steps, even without
            gradients.
        axis: JAX: the name of a mapped axis, or a tuple of names (`jax.shard_map`, `jax.pmap`, `jax.vmap`). PyTorch: a
            ``ProcessGroup`` or a ``DeviceMesh``, such as ``mesh["pp"]``. Gradients may be DTensors over other mesh
            dimensions, as in FSDP2; over this axis they would count several times. TensorFlow: "replicas", inside
            ``strategy.run``.
        split: "tree": each device has its own leaves of one large tree. Global norms and conditions span all devices;
            a leaf's norm is local. "leaves": each device has a slice of every leaf. Leaf norms and sizes span all
            devices too.
        replicated: Gradients that are equal on all devices along the axis, selected as in `masked`: tied embeddings,
            layer norms under tensor parallelism. They count once. Equal paths get equal noise.

    Returns:
        A transform for gradients of any shape and floating or complex dtype, with the state of `tx`. In PyTorch with
        ``split="tree"``, devices may hold different trees, and a pattern may match nothing.

    Raises:
        TypeError: `tx` is not a transform, or `axis` has an unknown form. On use: the framework runs on one device
            only.
        ValueError: `split` is unknown. On use: the axis does not exist, this process is not in the mesh, or the mesh
            holds several processes of a DTensor's mesh.

    Example:
        >>> import jax
        >>> import gradxform as gx
        >>> tx = gx.across(gx.clip_global_norm(1.0), "stage")
        >>> stages = jax.numpy.array([[3.0, 0.0], [0.0, 4.0]])  # one row per device
        >>> print(jax.vmap(lambda gradient: tx([gradient])[0], axis_name="stage")(stages))
        [[0.6 0. ]
         [0.  0.8]]

    References:
        Huang et al., GPipe: efficient training of giant neural networks using pipeline parallelism, 2019;
        Shoeybi et al., Megatron-LM: training multi-billion parameter language models using model parallelism, 2019
        (``clip_grad_norm_fp32`` sums squares over the model-parallel group).
    """
    named = _checked_axis(axis)
    if split not in _SPLITS:
        raise ValueError(f"across: split must be 'tree' (each device has its own leaves) or 'leaves', got {split!r}")
    if replicated is not None:
        replicated = check("across", replicated)
    by_leaf = split == "leaves"

    def entered(view: Tree) -> Tree:
        if any(_overlap(group.axis, axis) for group in view.groups):
            raise ValueError(f"across: two nested across use the same axis {axis!r}; remove one")
        group = Group(axis, by_leaf, named)
        inside = view._replace(groups=(*view.groups, group))
        if replicated is None:
            return inside
        mask = chosen("across", replicated, inside)
        same = frozenset(slot for slot, there in zip(view.source.kept, mask, strict=True) if there)
        return view._replace(groups=(*view.groups, group._replace(replicated=same)))

    def rule(view: Tree, state: Any, context: Context) -> tuple[Tree, Any]:
        devices_of(view.backend, axis).check(axis, view.leaves, lambda: view.source.paths)
        inside, state = tx.rule(entered(view), state, context)
        return inside._replace(groups=view.groups), state

    def start(params: Any) -> Any:
        view = Tree.read(params)
        return tx.init(params if view is None else entered(view))

    traits = declared(tx, axes=(axis,), states=lambda state: (state,))
    return GradientTransformation(rule, start if tx.stateful else None, traits=traits)


def check_whole(view: Tree, transform: str, why: str) -> None:
    """Reject gradients of which this device has only a slice."""
    for group in view.groups:
        if group.by_leaf:
            for i in view.chosen:
                if view.source.kept[i] not in (group.replicated or ()):
                    part = f"across(..., split='leaves') gives this device a slice of {view.source.path(i)!r}"
                    raise ValueError(f"{transform}: {part}, {why}; use {transform} outside of across")


def _overlap(one: Any, other: Any) -> bool:
    """Whether two axes are equal or share a name."""
    both = [{axis} if isinstance(axis, str) else set(axis) for axis in (one, other) if isinstance(axis, (str, tuple))]
    return not both[0].isdisjoint(both[1]) if len(both) == 2 else one == other


def _checked_axis(axis: Any) -> bool:
    """Whether an axis is given by name.

    Raises:
        TypeError: the value cannot be an axis.
        ValueError: the tuple is empty, or repeats a name.
    """
    if isinstance(axis, (str, tuple)):
        names = (axis,) if isinstance(axis, str) else axis
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"across: axis must be a name or a tuple of names, got {axis!r}")
        if not all(names) or not names or len(set(names)) < len(names):
            raise ValueError(f"across: axis must be a name, or a tuple of different names, got {axis!r}")
        return True
    if type(axis).__module__.partition(".")[0] == "torch":
        return False
    known = "a JAX axis name or a tuple of names, a PyTorch ProcessGroup or DeviceMesh, or 'replicas' for TensorFlow"
    outside = "; torch.distributed.new_group returns this outside the group: do not use across in this process"
    hint = outside if isinstance(axis, int) and axis == -100 else ""
    raise TypeError(f"across: axis must be {known}; got {axis!r} of type {type(axis).__name__}{hint}")
