"""Which leaves of a tree a `where` is for: by path, by function, by variable, or by a tree of bools.

A glob matches whole paths: ``*`` within a key, ``**`` over any number of keys, ``?`` for one character. Paths have
several spellings: "/" or "." between keys, with or without the keys that `torch.compile`, FSDP, DDP and Keras add.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.errors import short
from gradxform.core.leaves import Source
from gradxform.core.tree import Tree


class Variables(tuple[Any, ...]):
    """A selection of variables, compared and hashed by identity."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Whether both have the same variables in the same order."""
        return isinstance(other, Variables) and list(map(id, self)) == list(map(id, other))

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(tuple(map(id, self)))

    def __repr__(self) -> str:
        """Show a few paths if all have one; else the number of variables."""
        names = list(map(path_of, self))
        if all(names) and len(names) <= 3:
            return f"<{', '.join(names)}>"
        return f"<{len(names)} variable{'s' * (len(names) != 1)}>"


Where = Any
"""A glob on the path, an `re.Pattern`, a function, a variable, a list of these, or a tree of bools."""
Choice = tuple[tuple[Any, bool], ...]
"""The parts of a `where`, each of which may choose a leaf, and whether a part is a function of path and leaf."""
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_BY_PATH: tuple[Any, ...] = (str, re.Pattern, Variables)
_SIMPLE = (*_BY_PATH, *FUNCTIONS)
_NEVER = (*_SIMPLE, bool, int, float, dict, list, tuple, np.generic, type(None))  # types of no variable
_MAPS = {"tree_map", "tree_map_with_path", "map_with_path", "flatten_dict", "path_aware_map", "map_structure"}
"""Functions of whole trees, as optax masks call them."""
_WILDCARDS = {"**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_MOST = 8  # globs with more wildcards could take exponential time
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module")  # keys that `torch.compile` and FSDP add to the names of parameters
_WRAPPER = re.compile(rf"(?<![^/.])(?:{'|'.join(_WRAPPERS)})[/.]")


def recorded(where: Where) -> Where:
    """Wrap the variables of a `where` in `Variables`, to store it as a hyperparameter."""
    listed = type(where) in (list, tuple)
    items = list(where.values()) if type(where) is dict else where if listed else [where]
    if listed and all(isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in where):
        items = [item[1] for item in where]
    if items and all(map(_is_variable, items)):
        return Variables(items)
    return where if not listed else type(where)(Variables((item,)) if _is_variable(item) else item for item in where)


def check(transform: str, where: Where) -> Choice:
    """Split a `where` into its parts, when the transform is built.

    Raises:
        TypeError: nothing that can choose leaves.
        ValueError: a glob has more than eight wildcards.
    """
    where = recorded(where)
    listed = type(where) in (list, tuple)
    items = where if listed else [where]
    mixed = listed and any(isinstance(item, _SIMPLE) for item in items)
    for item in items:
        hint = "" if mixed and not isinstance(item, _SIMPLE) else _hint(item)
        if hint is not None and (mixed or not listed or item is not None):
            raise TypeError(
                f"{transform}: where must be a glob ('encoder/**'), an re.Pattern, a function of path or (path, leaf), "
                f"a variable, a list of these, or a tree of bools, got {type(item).__name__} {short(item)}{hint}"
            )
        if isinstance(item, str):
            expression(item)
    if not (mixed or isinstance(where, _SIMPLE) or callable(where)):
        return ((where, False),)
    variables = Variables(each for item in items if isinstance(item, Variables) for each in item)
    others = [item for item in items if not isinstance(item, Variables)]
    parts = [*others, variables] if variables else others
    return tuple((part, callable(part) and _takes_leaf(transform, part)) for part in parts)


def _hint(item: Any) -> str | None:
    """Return what to write instead of an object that cannot choose leaves, if known; None if it can."""
    if isinstance(item, _SIMPLE):
        return "" if isinstance(item, re.Pattern) and isinstance(item.pattern, bytes) else None
    if hasattr(item, "named_parameters") or hasattr(item, "trainable_variables"):
        return "; write list(module.parameters()) or module.trainable_variables, or a pattern"
    if isinstance(item, Iterator):
        return ", which can be read once; write list(...) of it"
    number = item is None or (isinstance(item, (int, float, bytes)) and not _is_bool(item))
    return "" if number or (hasattr(item, "init") and hasattr(item, "update")) else None


def _takes_leaf(transform: str, function: Any) -> bool:
    """Whether a function takes path and leaf, not the path alone: a default other than None means no leaf."""
    if isinstance(function, types.BuiltinFunctionType):  # `names.__contains__`, `re.compile("bias").search`
        return False
    if isinstance(function, types.FunctionType):
        code = function.__code__
        if _MAPS & {*code.co_names} or {"tree", "map"} <= {*code.co_names}:
            raise TypeError(
                f"{transform}: where is called with one path at a time, such as 'dense/kernel', and {short(function)} "
                "maps a tree; write the tree of bools that it returns, mask(params), or a function of path and leaf"
            )
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():  # which follows no signature
            return code.co_argcount > 1 or bool(code.co_flags & inspect.CO_VARARGS)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without one
        return True
    second = list(signature.parameters.values())[1:2]
    for given in (("path", "leaf"), ("path",)):
        with contextlib.suppress(TypeError):
            signature.bind(*given)
            return len(given) == 2 and all(each.default in (each.empty, None) for each in second)
    if isinstance(function, FUNCTIONS):
        raise TypeError(f"{transform}: where must be a function of the path, or of path and leaf, got {signature}")
    return True  # a tree of bools that can be called


def verify(transform: str, where: Where, view: Tree, before: Sequence[Where] = ()) -> None:
    """Refuse patterns and variables that choose nothing; functions and trees of bools are left alone.

    Warn if those before have all leaves already.
    """
    choice, earlier = check(transform, where), [part for each in before for part in check(transform, each)]
    for part, _ in choice:
        if isinstance(part, _BY_PATH) or (isinstance(part, (list, tuple)) and not part):
            _mask(transform, part, False, view, view.source.find_paths())
    if earlier and all(isinstance(part, _BY_PATH) for part, _ in (*choice, *earlier)):
        both = zip(chosen(transform, choice, view), chosen(transform, tuple(earlier), view), strict=True)
        taken = [there for own, there in both if own]
        if taken and all(taken):
            rules = ", ".join(map(repr, before))
            advice = f"earlier rules have all that it matches; leave it out, or write it before {rules}"
            warnings.warn(f"{transform}: the rule {where!r} is never reached, as {advice}", stacklevel=3)


def chosen(transform: str, where: Choice, view: Tree) -> tuple[bool, ...]:
    """For each leaf of a view, whether `where` is for it."""
    paths = view.source.find_paths()  # of all slots, as one that is None now has its path
    masks = [_mask(transform, part, takes_leaf, view, paths) for part, takes_leaf in where]
    return tuple(map(any, zip(*masks, strict=True)))


def _mask(transform: str, part: Any, takes_leaf: bool, view: Tree, paths: Sequence[str]) -> Sequence[bool]:
    """For each leaf of a view, whether one part of a `where` is for it."""
    source = view.source
    if not isinstance(part, _BY_PATH):
        if not isinstance(part, FUNCTIONS):  # an Equinox module of bools can be called
            if not callable(part) or any(map(_is_bool, view.backend.flatten(part)[0])):
                return _by_tree(transform, part, view)
        given = zip([paths[slot] for slot in source.kept], view.leaves, strict=True)
        return [_decision(transform, part, *pair[: 1 + takes_leaf]) for pair in given]
    alike = all(group.traced or group.by_leaf for group in view.groups)  # else another device may have what is chosen
    owned = isinstance(part, Variables)
    found = _owned(transform, part, view) if owned else matches(part, paths, _is_of_keras(view), not alike)
    if alike and not any(found):
        some = ", ".join(map(repr, source.paths[:5])) + (", ..." if len(source.paths) > 5 else "")
        none = f"variables {part!r} have no gradient" if owned else f"pattern {part!r} matches no path"
        raise ValueError(f"{transform}: the {none}; the paths are {some}{_advice(part, paths, source)}")
    return [found[slot] for slot in source.kept]


def _owned(transform: str, variables: Variables, view: Tree) -> Sequence[bool]:
    """For each slot, whether its gradient belongs to one of the variables."""
    if view.source.owners is None:
        raise TypeError(
            f"{transform}: gradients in a tree do not tell their variables ({variables!r}); choose by path "
            "('encoder/**'), or use gx.torch.apply_ or attach, gx.tensorflow.apply, GradientProcessor or gx.keras.wrap"
        )
    wanted = {each for variable in variables for each in _identities(variable)}
    return [bool(wanted & _identities(owner)) for owner in view.source.owners]


def _identities(variable: Any) -> set[int]:
    """Return the ids of a variable and of the framework's variable inside a Keras variable."""
    keras = type(variable).__module__.partition(".")[0] == "keras"
    return {id(variable), id(getattr(variable, "_value", variable) if keras else variable)}


def _decision(transform: str, function: Any, path: str, *leaf: Any) -> bool:
    """Ask a function about one leaf."""
    raised = None
    try:
        result = function(path, *leaf)
    except (AttributeError, TypeError, LookupError, AssertionError) as error:
        if leaf and not isinstance(error, AttributeError):  # which may be of traced values
            raise
        result, raised = (), error
    if isinstance(result, (Mapping, list, tuple)):  # of a function of the parameters, as in optax
        did = f"got {short(result)}" if raised is None else f"raised {short(raised)}"
        raise TypeError(
            f"{transform}: where is called with {'path and leaf' if leaf else 'one path at a time'} and must return a "
            f"bool, but {did} for {path!r}; of a function of the parameters, write its result, a tree of bools"
        ) from raised
    return bool(result)


def _by_tree(transform: str, where: Any, view: Tree) -> Sequence[bool]:
    """Read a tree of bools, each for its leaf or for all leaves below it."""
    leaves = zip(view.backend.paths(where), view.backend.flatten(where)[0], strict=True)
    given = {path: leaf for path, leaf in leaves if leaf is not None}
    if not given:  # which is the mask of an empty tree, and of that alone
        raise ValueError(f"{transform}: where is an empty list or tree, which chooses nothing")
    for path, leaf in given.items():
        if not _is_bool(leaf):
            raise TypeError(f"{transform}: where must be a tree of bools; at {path!r} it has {short(leaf)}")
    mask = {path.replace(".", "/"): leaf for path, leaf in given.items()} | given  # PyTorch's names
    for paths in (view.source.find_paths(), _without_first(view.source.find_paths(), _is_of_keras(view))):
        found = [_at(mask, paths[slot]) for slot in view.source.kept]
        if None not in found:
            return list(map(bool, found))
    path = next(path for path in view.source.paths if _at(mask, path) is None)
    raise ValueError(f"{transform}: the tree of bools has none for {path!r}; it has {', '.join(map(repr, given))}")


def _at(mask: Mapping[str, Any], path: str) -> Any:
    """Return the bool at a path, or at the nearest one above it; None if there is none."""
    keys = path.split("/") if path else []
    prefixes = ("/".join(keys[:depth]) for depth in range(len(keys), -1, -1))
    return next((mask[prefix] for prefix in prefixes if prefix in mask), None)


def _is_bool(leaf: Any) -> bool:
    return isinstance(leaf, (bool, np.bool_))


def _is_of_keras(view: Tree) -> bool:
    """Whether the gradients are of Keras variables, whose paths may begin with a model's name."""
    owners = view.source.owners
    return owners is not None and all(isinstance(getattr(owner, "path", None), str) for owner in owners)


# --- patterns -------------------------------------------------------------------------------------------------------


def matches(
    pattern: str | re.Pattern[str], paths: Sequence[str], rooted: bool = False, alone: bool = False
) -> list[bool]:
    """For each path, whether a pattern chooses it.

    A pattern without wildcards that is a path chooses that path alone. A glob is matched with the path as written, and
    with "/" for "." in both and without the keys of `torch.compile` and FSDP. A regular expression is searched for in
    one spelling after the other. The first key, if it is DDP's ``module`` or the name of a Keras model, is left out
    where nothing else matches.

    Args:
        pattern: a glob or a regular expression.
        paths: all paths of a tree.
        rooted: whether the first key may be the name of a Keras model.
        alone: whether each path is read for itself, since other devices have other paths.
    """
    text = pattern if isinstance(pattern, str) else pattern.pattern
    wrapped = any(name in path for path in paths for name in _WRAPPERS) and not any(name in text for name in _WRAPPERS)
    bare = [_WRAPPER.sub("", path) for path in paths] if wrapped else paths
    plain = [path.replace(".", "/") for path in bare]
    if isinstance(pattern, str):
        if pattern in paths and not {"*", "?"} & {*pattern}:
            return [path == pattern for path in paths]
        written, slashed = expression(pattern).fullmatch, expression(pattern.replace(".", "/")).fullmatch
        tries = [map(lambda a, b: written(a) or slashed(b), paths, plain), map(slashed, _without_first(plain, rooted))]
    else:
        dotted = [path.replace("/", ".") for path in plain]
        tries = [map(pattern.search, those) for those in (bare, paths, plain, dotted, _without_first(plain, rooted))]
    for attempt in tries:
        found = [match is not None for match in attempt]
        if any(found) or alone:
            break
    return found


def _without_first(paths: Sequence[str], rooted: bool) -> Sequence[str]:
    """Leave out the first key if all paths have the same one, and it is DDP's or a Keras model's."""
    first = {path.partition("/")[0] if "/" in path else "" for path in paths}
    if len(first) != 1 or "" in first or not (rooted or first == {"module"}):
        return paths
    return [path.partition("/")[2] for path in paths]


def expression(glob: str) -> re.Pattern[str]:
    """Translate a glob to a regular expression for whole paths.

    Raises:
        ValueError: the glob has more than eight wildcards.
    """
    if len(re.findall(r"\*\*?", glob)) > _MOST:
        raise ValueError(f"the pattern {glob!r} has more than {_MOST} wildcards; write it as re.compile(...)")
    parts = re.split(r"(\*\*/|/\*\*|\*\*|\*|\?)", glob)
    return re.compile("".join(_WILDCARDS.get(part) or re.escape(part) for part in parts), re.DOTALL)


def _advice(pattern: Any, paths: Sequence[str], source: Source) -> str:
    """Say why a name is absent, or suggest a pattern that would match; empty if nothing is known."""
    import difflib  # which nothing but an error needs

    absent = {} if isinstance(pattern, Variables) else source.absent()
    for name, there in zip(absent, matches(pattern, list(absent), True) if absent else (), strict=True):
        if there:
            return f"; {name!r} {absent[name]}"
    if all(path.isdigit() for path in paths):
        return (
            ". The leaves of a list have numbers for paths; in PyTorch, write gx.torch.attach("
            "optimizer, tx, names=model) or gx.torch.apply_(tx, model); in TensorFlow, write gx.tensorflow.apply("
            "tx, grads_and_vars)"
        )
    if isinstance(pattern, Variables):
        return "; a variable is chosen by identity: copy the transformation together with the model"
    if isinstance(pattern, str) and re.search(r"[\\^$|+()]|\.\*", pattern):
        return f"; of a regular expression, write re.compile({pattern!r})"
    near = dict.fromkeys(paths)
    for keys in [path.replace(".", "/").split("/") for path in paths]:
        for i in range(1, len(keys)):
            near |= {"/".join([*keys[:i], "**"]): None, "/".join(["**", *keys[i:]]): None}
    bare = pattern.removesuffix(":0") if isinstance(pattern, str) else ""  # of a variable's name in TensorFlow
    keys = bare.replace(".", "/").split("/")
    moved = ["/".join(keys[i:]) for i in range(len(keys)) if keys[i].strip("*")]
    moved += ["/".join(["**", *keys])] if keys[0].strip("*") else []
    moved += [f"{each}*" if each.endswith("/*") else f"{each}/**" for each in moved if not each.endswith("**")]
    few = [each for each in moved if each.count("*") <= _MOST]
    fitting = [each for each in few if any(matches(each, paths))]  # under another prefix
    closest = fitting or difflib.get_close_matches(bare, near, 1, 0.7)
    unknown = "" if fitting or source.owners is None else "; a name that is tied or not trainable may have none"
    return unknown + (f"; did you mean {closest[0]!r}?" if closest else "")


# --- variables ------------------------------------------------------------------------------------------------------


def path_of(variable: Any) -> str:
    """Return the path of a Keras variable, or the name of another one without its output number; "" if it has none."""
    path, name = getattr(variable, "path", None), getattr(variable, "name", None)
    return path if isinstance(path, str) else name.partition(":")[0] if isinstance(name, str) else ""


def keys_of(paths: Sequence[str]) -> list[str]:
    """Turn paths into unique dict keys by numbering repeated ones."""
    if len(set(paths)) == len(paths):
        return list(paths)
    keys: dict[str, None] = {}
    for path in paths:
        numbered = (f"{path}_{number}" for number in itertools.count(1))
        key = path if path not in keys else next(key for key in numbered if key not in keys and key not in paths)
        keys[key] = None
    return list(keys)


def _is_variable(item: Any) -> bool:
    """Whether an object is a variable, a parameter or an array, and not a mask or a number."""
    if isinstance(item, _NEVER) or "bool" in str(getattr(item, "dtype", "")):
        return False
    return lookup.unwrapped(item) is not item or lookup.owner(item) is not None
