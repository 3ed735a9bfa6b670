"""A transform of a tree whose parts lie on several devices, which the framework does not know to be one tree."""

from __future__ import annotations

from typing import Any

from gradxform.core import matching
from gradxform.core.factory import factory
from gradxform.core.flat import Flat, flat_view
from gradxform.core.foreign import as_transformation
from gradxform.core.group import Group, replicated_in
from gradxform.core.matching import Where
from gradxform.core.transformation import Context, GradientTransformation

_SPLITS = ("tree", "leaves")


@factory
def across(tx: Any, axis: Any, *, split: str = "tree", replicated: Where | None = None) -> GradientTransformation:
    r"""Apply a transform to a tree whose parts lie on several devices, with norms and conditions taken over all of it.

    .. math:: n = \Bigl(\sum_{\text{devices}} n_{\text{device}}^p\Bigr)^{1/p}

    For code that shards by hand: pipeline stages, experts, ZeRO, `jax.shard_map`. Where the framework knows the whole
    array (JAX's sharded arrays under `jit`, PyTorch's DTensors, FSDP2), norms are those of the whole without this.

    Devices tell each other numbers alone, in float64: one collective for each norm that is asked for. All of them get
    the same bits and decide alike. Means and norms over axes (`centralize`, `clip_adaptive`, ``axes=``) are those of
    what the device holds, and so are the norms that transforms of other libraries take. `add_noise` draws independently
    on each device.

    Args:
        tx: a transformation, or any object with `init` and `update`. Each device calls it at the same steps, one that
            has no gradient too.
        axis: in JAX the name, or a tuple of names, of a mapped axis: of a mesh in `jax.shard_map`, of `jax.pmap` or
            `jax.vmap`. In PyTorch a ``ProcessGroup`` or a ``DeviceMesh``, such as ``mesh["pp"]``; gradients may be
            DTensors of other dimensions, as FSDP2 makes them, but of none that the axis holds: they would count several
            times. In TensorFlow "replicas", inside of ``strategy.run``.
        split: "tree" if each device has leaves of its own of one large tree: the global norm and every condition are
            those of all devices, and the norm of a leaf is its own. "leaves" if each device has its slice of every
            leaf: the norms of leaves, and their numbers of elements, are those of all slices too.
        replicated: which gradients are the same on every device along the axis, as in `masked`: tied embeddings, layer
            norms under tensor parallelism. They count once, as the first device that has any of them knows them, and
            get the same noise where their paths are the same.

    Returns:
        A transformation of gradients of any shape and floating or complex dtype; stateless if `tx` is, else with its
        state. In PyTorch, the trees of devices with ``split="tree"`` may differ, and a pattern that matches no path is
        no error there.

    Raises:
        TypeError: an object that is no transformation, an axis of no known form; on use, a framework of one device.
        ValueError: an unknown split; on use, an axis that is not there, a mesh that this process is not in, or one that
            holds several processes of a DTensor's mesh.

    Example:
        >>> import jax
        >>> import gradxform as gx
        >>> tx = gx.across(gx.clip_global_norm(1.0), "stage")
        >>> stages = jax.numpy.array([[3.0, 0.0], [0.0, 4.0]])  # one row a device
        >>> print(jax.vmap(lambda gradient: tx([gradient])[0], axis_name="stage")(stages))
        [[0.6 0. ]
         [0.  0.8]]

    References:
        Huang et al., GPipe: efficient training of giant neural networks using pipeline parallelism, 2019;
        Shoeybi et al., Megatron-LM: training multi-billion parameter language models using model parallelism, 2019,
        whose ``clip_grad_norm_fp32`` adds up squares over the model parallel group.
    """
    inner, named = as_transformation("across", tx), _checked_axis(axis)
    if split not in _SPLITS:
        raise ValueError(f"across: split must be 'tree' (each device has leaves of its own) or 'leaves', got {split!r}")
    if replicated is not None:
        replicated = matching.check("across", replicated)
    by_leaf = split == "leaves"

    def entered(view: Flat) -> Flat:
        if any(_overlap(group.axis, axis) for group in view.groups):
            raise ValueError(f"across: one across is inside of another along the same axis {axis!r}; leave one out")
        group = Group(axis, by_leaf, None, named or by_leaf, named)
        inside = view._replace(groups=(*view.groups, group))
        if replicated is None:
            return inside
        chosen = matching.chosen("across", replicated, inside)
        same = replicated_in(chosen, view.source.kept, len(view.source.slots))
        return view._replace(groups=(*view.groups, group._replace(replicated=same)))

    def rule(view: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        view.backend.check_axis(axis, view.leaves, lambda: view.source.paths)
        inside, state = inner.rule(entered(view), state, context)
        return inside._replace(groups=view.groups), state

    def start(params: Any) -> Any:
        view = flat_view(params)
        return inner.init(params if view is None else entered(view))

    return GradientTransformation(rule, start if inner.stateful else None)


def _overlap(one: Any, other: Any) -> bool:
    """Whether two axes are one, or have a name in common."""
    both = [{axis} if isinstance(axis, str) else set(axis) for axis in (one, other) if isinstance(axis, (str, tuple))]
    return not both[0].isdisjoint(both[1]) if len(both) == 2 else one == other


def _checked_axis(axis: Any) -> bool:
    """Whether an axis is given by name.

    Raises:
        TypeError: what can be no axis.
        ValueError: no name, or one twice.
    """
    if isinstance(axis, (str, tuple)):
        names = (axis,) if isinstance(axis, str) else axis
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"across: axis must be a name or a tuple of names, got {axis!r}")
        if not all(names) or not names or len(set(names)) < len(names):
            raise ValueError(f"across: axis must be a name, or several different ones, got {axis!r}")
        return True
    if type(axis).__module__.partition(".")[0] == "torch":
        return False
    hint = ""
    if axis == -100 and isinstance(axis, int):
        hint = (
            "; torch.distributed.new_group returns this where the process is not in the group: leave across out there"
        )
    raise TypeError(
        "across: axis must be the name of an axis of JAX, or a tuple of them, a ProcessGroup or a DeviceMesh of "
        f"PyTorch, or 'replicas' for TensorFlow, got {axis!r} of type {type(axis).__name__}{hint}"
    )
