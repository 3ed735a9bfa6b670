"""Drivers of the adapters in NumPy, PyTorch, TensorFlow, optax and MLX; keras_cases.py has Keras's."""

from __future__ import annotations

import functools
import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from conformance import Driver, Leaves, assembled
from support import array, tensors

import gradxform as gx


class Lazy:
    """A module that is imported when it is used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # doctest asks for some of every object in a module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self.name), attribute)


torch, tf, keras, jax, optax = map(Lazy, ("torch", "tensorflow", "keras", "jax", "optax"))
mx, mlx_optimizers, mlx_utils = map(Lazy, ("mlx.core", "mlx.optimizers", "mlx.utils"))


class ByHand(Driver):
    """A state that the user keeps, and saves with parameters and optimizer."""

    _state: Any = None

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = gx.from_numpy(state, like=self._state)

    optimizer_state: Any = None

    def save(self, folder: Path) -> None:
        (folder / "run").write_bytes(pickle.dumps([self.read(), gx.to_numpy(self.state), self.optimizer_state]))

    def load(self, folder: Path) -> None:
        params, self.state, self.optimizer_state = pickle.loads((folder / "run").read_bytes())
        self.assign(params)


class NumpyApply(ByHand):
    name, framework = "numpy.apply_", "numpy"
    refuses_nothing = True
    optimizers = ()
    dtypes = ("float16", "bfloat16", "float32", "float64", "complex64")

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        self.tx = assembled(tx, None, how)
        self.assign(params)
        self._state = self.tx.init(self.params) if isinstance(self.tx, gx.GradientTransformation) else None

    def step(self, gradients: Leaves, **loss: Any) -> None:
        given = {path: None if g is None else np.array(g) for path, g in gradients.items()}
        self._state = gx.numpy.apply_(self.tx, given, self._state, self.params, **loss)
        self.assign(
            {path: p if given[path] is None else np.asarray(p - given[path]) for path, p in self.params.items()}
        )

    def flush(self, **loss: Any) -> None:
        updates, self._state = gx.flush(self.tx, self._state, self.params, **loss)
        self.assign({path: np.asarray(p - updates[path]) for path, p in self.params.items()})

    def read(self) -> Leaves:
        return dict(self.params)

    def assign(self, params: Leaves) -> None:
        self.params = dict(params)


# --- PyTorch ---------------------------------------------------------------------------------------------------------


TORCH_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1.0),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "momentum, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5, fused=True),
}


class TorchApply(ByHand):
    name, framework = "torch.apply_", "torch"
    sparse, by_identity = True, True
    dtypes = ("float16", "bfloat16", "float32", "float64", "complex64")

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:

        given = {path: torch.nn.Parameter(self.placed(leaf)) for path, leaf in tensors("torch", params).items()}
        self.named = {path.replace("/", "."): p for path, p in given.items()}
        self.optimizer = TORCH_OPTIMIZERS[optimizer](self.named.items())
        self.scale = torch.amp.GradScaler("cpu", init_scale=2.0**10) if how.get("scale") else None
        self.may_skip = "around" in how
        self.unscaled_first = how.get("scale") == "unscaled before"
        self.start(assembled(tx, given, how))

    def placed(self, tensor: Any) -> Any:
        """Spread a tensor over processes, for drivers that do."""
        return tensor

    def start(self, tx: Any) -> None:
        self.tx = tx
        self._state = None if tx is None else gx.torch.init(tx, self.named)

    def step(self, gradients: Leaves, **loss: Any) -> None:
        self.fill(gradients)
        if self.tx is not None:
            self._state = gx.torch.apply_(self.tx, self.named, self._state, **loss)
        if not self.may_skip or gx.has_updated(self._state):
            self.optimizer.step()

    def flush(self, **loss: Any) -> None:
        self._state = gx.torch.apply_(self.tx, self.named, self._state, flush=True, **loss)
        if gx.has_updated(self._state):
            self.optimizer.step()

    def fill(self, gradients: Leaves) -> None:

        for path, g in gradients.items():
            p = self.named[path.replace("/", ".")]
            if isinstance(g, tuple):
                p.grad = torch.sparse_coo_tensor(torch.tensor(g[0][None]), torch.tensor(g[1]), p.shape)
            else:
                p.grad = None if g is None else self.placed(tensors("torch", [g])[0].to(p.dtype))

    def read(self) -> Leaves:
        return {path.replace(".", "/"): array(p.detach()).copy() for path, p in self.named.items()}

    def assign(self, params: Leaves) -> None:
        for path, value in tensors("torch", params).items():
            self.named[path.replace("/", ".")].data.copy_(self.placed(value))

    @property
    def optimizer_state(self) -> Any:
        return self.optimizer.state_dict()

    @optimizer_state.setter
    def optimizer_state(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)


class TorchAttach(TorchApply):
    name = "torch.attach"
    optimizers = tuple(TORCH_OPTIMIZERS)[1:]
    scales = ("scaler", "unscaled before")
    checks_first = has_paths = True

    def start(self, tx: Any) -> None:
        on = "updates" if self.on_updates else "gradients"
        self.attached = None if tx is None else gx.torch.attach(self.optimizer, tx, on=on)

    @property
    def handle(self) -> Any:
        return self.attached

    @property
    def state(self) -> Any:
        return self.attached.state

    @state.setter
    def state(self, state: Any) -> None:
        self.attached.state = state

    def flush(self, **loss: Any) -> None:
        self.attached.flush(**loss)

    def step(self, gradients: Leaves, **loss: Any) -> None:
        if self.scale is None:
            self.fill(gradients)
            self.optimizer.step(**loss)
            return
        self.optimizer.zero_grad()
        given = zip(self.named.values(), tensors("torch", gradients).values(), strict=True)
        self.scale.scale(sum((p * g).sum() for p, g in given)).backward()
        if self.unscaled_first:
            self.scale.unscale_(self.optimizer)
        self.scale.step(self.optimizer)
        self.scale.update()

    def save(self, folder: Path) -> None:

        torch.save([self.named, self.optimizer.state_dict()], folder / "run")

    def load(self, folder: Path) -> None:

        named, state = torch.load(folder / "run", weights_only=True)
        for path, p in self.named.items():
            p.data.copy_(named[path])
        self.optimizer.load_state_dict(state)


class TorchClosure(TorchAttach):
    """A closure makes the gradients within the step, and returns the loss."""

    name = "torch.attach, closure"
    optimizers, scales = ("momentum", "adamw"), ()
    transforms = ("several", "masks, freeze", "schedules", "parameters")

    def step(self, gradients: Leaves, **loss: Any) -> None:
        self.optimizer.step(lambda: self.fill(gradients) or loss.get("value"))


class TorchUpdates(TorchAttach):
    name, on_updates = "torch.attach, on updates", True
    sparse = False


# --- TensorFlow ------------------------------------------------------------------------------------------------------


TENSORFLOW_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.5),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(TENSORFLOW_OPTIMIZERS["adamw"](), initial_scale=1.0),
    "v1 momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    "v1 adam": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
}


class TensorFlowApply(Driver):
    """Pairs that are transformed; "sgd" subtracts them."""

    name, framework = "tensorflow.apply", "tensorflow"
    refuses_nothing = True
    stateful = saves = sets = False
    sparse = by_identity = True
    none_left = ValueError
    optimizers = ("momentum", "adamw", "v1 momentum")
    mode = staticmethod(lambda function: function)

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        self.variables = {path: tf.Variable(value, name=path) for path, value in tensors("tensorflow", params).items()}
        self.optimizer = None if optimizer == "sgd" else TENSORFLOW_OPTIMIZERS[optimizer]()
        if hasattr(self.optimizer, "build"):
            self.optimizer.build(list(self.variables.values()))
        self.may_skip = "around" in how
        self.start(assembled(tx, self.variables, how))

    def start(self, tx: Any) -> None:
        self.tx, self.run = tx, type(self).mode(self.train)

    def transformed(self, pairs: Any, **loss: Any) -> Any:
        return gx.tensorflow.apply(self.tx, pairs, params=list(self.variables.values()))

    def train(self, gradients: Leaves, **loss: Any) -> Any:
        pairs: Any = [(g, self.variables[path]) for path, g in gradients.items()]
        if self.may_skip:
            return self.processor.apply_gradients(self.optimizer, pairs, **loss)
        pairs = [(g, v) for g, v in (pairs if self.tx is None else self.transformed(pairs, **loss)) if g is not None]
        if self.optimizer is None or not pairs:
            return [v.assign_sub(g) for g, v in pairs]
        return self.optimizer.apply_gradients(pairs)

    def step(self, gradients: Leaves, **loss: Any) -> None:
        def rows(given: Any, shape: Any) -> Any:
            return tf.IndexedSlices(tf.constant(given[1]), tf.constant(given[0]), tf.constant(shape.as_list()))

        self.run(
            {
                path: rows(g, self.variables[path].shape) if isinstance(g, tuple) else tensors("tensorflow", g)
                for path, g in gradients.items()
            },
            **tensors("tensorflow", loss),
        )

    def read(self) -> Leaves:
        return {path: array(v).copy() for path, v in self.variables.items()}

    def assign(self, params: Leaves) -> None:
        for path, value in tensors("tensorflow", params).items():
            self.variables[path].assign(value)


class Processor(TensorFlowApply):
    name = "tensorflow.GradientProcessor"
    stateful = saves = sets = checks_first = has_paths = True
    optimizers = ("momentum", "adamw", "loss scale", "v1 momentum")
    dtypes = ("float16", "bfloat16", "float32", "float64", "complex64")

    def start(self, tx: Any) -> None:
        super().start(tx)
        self.processor = None if tx is None else gx.tensorflow.GradientProcessor(tx, list(self.variables.values()))

    def transformed(self, pairs: Any, **loss: Any) -> Any:
        return self.processor(pairs, **loss)

    @property
    def handle(self) -> Any:
        return self.processor

    @property
    def state(self) -> Any:
        return self.processor.state

    @state.setter
    def state(self, state: Any) -> None:
        self.processor.state = state

    def flush(self, **loss: Any) -> None:
        def flushed() -> Any:
            return [variable.assign_sub(gradient) for gradient, variable in self.processor.flush(**loss)]

        type(self).mode(flushed)()

    def checkpoint(self) -> Any:
        parts = {"optimizer": self.optimizer} if self.optimizer is not None else {}
        return tf.train.Checkpoint(processor=self.processor, variables=list(self.variables.values()), **parts)

    def save(self, folder: Path) -> None:
        self.checkpoint().write(str(folder / "run"))

    def load(self, folder: Path) -> None:
        self.checkpoint().read(str(folder / "run")).assert_existing_objects_matched()


class ProcessorFunction(Processor):
    name = "tensorflow.GradientProcessor, tf.function"
    optimizers = ("momentum", "adamw", "loss scale")

    @staticmethod
    def mode(function: Any) -> Any:
        return tf.function(function)

    @property
    def traces(self) -> int:
        return self.run.experimental_get_tracing_count()


class ProcessorXla(ProcessorFunction):
    name = "tensorflow.GradientProcessor, XLA"
    sparse = exact = False
    optimizers = ("momentum", "adamw")
    transforms = ("several", "accumulate", "clip_zscore, per leaf", "masks, freeze", "schedules", "trace")

    @staticmethod
    def mode(function: Any) -> Any:
        return tf.function(function, jit_compile=True)


class Session(Processor):
    """A TF1 graph, with a train op for each set of gradients."""

    name = "tensorflow.GradientProcessor, session"
    by_identity = sets = has_paths = losses = False
    optimizers = ("v1 momentum", "v1 adam")
    use_resource = False

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        self.v1, self.graph = tf.compat.v1, tf.Graph()
        self.session, self.ops = self.v1.Session(graph=self.graph), {}
        with self.graph.as_default():
            self.variables = {
                path: self.v1.get_variable(path, initializer=value, use_resource=self.use_resource)
                for path, value in params.items()
            }
            self.values = {path: self.v1.placeholder(v.dtype.base_dtype, v.shape) for path, v in self.variables.items()}
            self.set = [v.assign(self.values[path]) for path, v in self.variables.items()]
            self.optimizer = None if optimizer == "sgd" else TENSORFLOW_OPTIMIZERS[optimizer]()
            self.may_skip = "around" in how
            self.start(assembled(tx, self.variables, how))
            self.session.run(self.v1.global_variables_initializer())

    def start(self, tx: Any) -> None:
        self.tx = tx
        self.processor = None if tx is None else gx.tensorflow.GradientProcessor(tx, list(self.variables.values()))

    def built(self, gradients: Leaves) -> Any:
        places: Leaves = {}
        for path, g in gradients.items():
            if isinstance(g, tuple):
                parts = self.v1.placeholder(tf.float32, g[1].shape), self.v1.placeholder(tf.int64, g[0].shape)
                places[path] = tf.IndexedSlices(*parts, tf.constant(self.variables[path].shape.as_list()))
            else:
                places[path] = None if g is None else self.v1.placeholder(g.dtype, g.shape)
        there = set(self.v1.global_variables())
        op = self.train(places)
        self.session.run(self.v1.variables_initializer(set(self.v1.global_variables()) - there))
        return places, op

    def step(self, gradients: Leaves, **loss: Any) -> None:
        kind = tuple(type(g) for g in gradients.values())
        with self.graph.as_default():
            if kind not in self.ops:
                self.ops[kind] = self.built(gradients)
        places, op = self.ops[kind]
        feed: Any = {}
        for path, g in gradients.items():
            if isinstance(g, tuple):
                feed |= {places[path].values: g[1], places[path].indices: g[0]}
            elif g is not None:
                feed[places[path]] = g
        self.session.run(op, feed)

    def read(self) -> Leaves:
        return self.session.run(self.variables)

    def assign(self, params: Leaves) -> None:
        self.session.run(self.set, {self.values[path]: value for path, value in params.items()})

    def ask(self, question: Callable[[Any], Any]) -> Any:
        with self.graph.as_default():
            return self.session.run(question(self.processor.state))

    def flush(self, **loss: Any) -> None:
        with self.graph.as_default():
            pairs = self.processor.flush()
            self.session.run([variable.assign_sub(gradient) for gradient, variable in pairs])

    @property
    def state(self) -> Any:
        with self.graph.as_default():
            state = self.processor.state
        return tf.nest.map_structure(lambda leaf: None if leaf is None else self.session.run(leaf), state)

    def save(self, folder: Path) -> None:
        with self.graph.as_default():
            self.v1.train.Saver().save(self.session, str(folder / "run"))

    def load(self, folder: Path) -> None:
        with self.graph.as_default():
            self.v1.train.Saver().restore(self.session, str(folder / "run"))


class ResourceSession(Session):
    name = "tensorflow.GradientProcessor, session with resource variables"
    use_resource = True
    transforms = ("several", "masks, freeze")


# --- optax -----------------------------------------------------------------------------------------------------------


@functools.cache
def optax_of(tx: Any, optimizer: str, around: Any, frozen: Any) -> tuple[Any, Any, Any]:
    """An optimizer and its compiled `update` and `flush`, which equal runs share."""
    found: Any = {
        "sgd": lambda: optax.sgd(1.0),
        "momentum": lambda: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9)),
        "adamw": lambda: optax.adamw(0.1, weight_decay=0.5),
    }[optimizer]()
    if around is not None:
        found = around(found)
    elif tx is not None:
        found = optax.chain(gx.jax.as_optax(tx), found)
    if frozen is not None:
        found = gx.jax.freeze(found, frozen)
    return found, jax.jit(found.update), jax.jit(functools.partial(gx.flush, tx))


class Optax(ByHand):
    """The optimizer follows in an optax chain, or is inside of what skips steps; compiled."""

    name, framework = "optax.chain", "jax"
    exact = False

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        self.tx, self.params, self.inside = tx, dict(params), "around" in how
        self.optimizer, self.update, self.flushed = optax_of(tx, optimizer, how.get("around"), how.get("frozen"))
        self.full, self.traced = self.optimizer.init(tensors("jax", params)), self.update._cache_size()

    @property
    def _state(self) -> Any:
        return self.full if self.inside else self.full[0]

    @_state.setter
    def _state(self, state: Any) -> None:
        self.full = state if self.inside else (state, *self.full[1:])

    @property
    def optimizer_state(self) -> Any:
        return jax.tree.map(np.asarray, self.full[1:])

    @optimizer_state.setter
    def optimizer_state(self, state: Any) -> None:
        self.full = (self.full[0], *state)

    def step(self, gradients: Leaves, **loss: Any) -> None:
        updates, self.full = self.update(tensors("jax", gradients), self.full, tensors("jax", self.params), **loss)
        self.params |= {path: np.asarray(self.params[path] + array(u)) for path, u in updates.items() if u is not None}

    def flush(self, **loss: Any) -> None:
        updates, self._state = self.flushed(self._state, tensors("jax", self.params), **loss)
        self.params |= {path: np.asarray(p - array(updates[path])) for path, p in self.params.items()}

    @property
    def traces(self) -> int:
        return self.update._cache_size() - self.traced

    def read(self) -> Leaves:
        return dict(self.params)

    def assign(self, params: Leaves) -> None:
        self.params = dict(params)


# --- MLX -------------------------------------------------------------------------------------------------------------


class MlxWrap(Driver):
    name, framework = "mlx.wrap", "mlx"
    refuses_nothing = True
    empty = none_left = ValueError

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        made = {
            "sgd": lambda: mlx_optimizers.SGD(1.0),
            "momentum": lambda: mlx_optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
            "adamw": lambda: mlx_optimizers.AdamW(0.1, weight_decay=0.5),
        }[optimizer]()
        self.assign(params)
        tx = assembled(tx, None, how)
        self.optimizer = made if tx is None else gx.mlx.wrap(made, tx)
        self.optimizer.init(self.tree(self.params))

    def tree(self, leaves: Leaves) -> Any:
        """Nested, as in a model."""
        return (
            mlx_utils.tree_unflatten([(path.replace("/", "."), leaf) for path, leaf in leaves.items()])
            if leaves
            else {}
        )

    def step(self, gradients: Leaves, **loss: Any) -> None:
        given = self.tree(tensors("mlx", {path: g for path, g in gradients.items() if g is not None}))
        given = given or self.optimizer.apply_gradients({}, {})  # an error within mx.compile would spoil its arrays
        self.move(self.optimizer.apply_gradients, given, self.tree(self.params), **loss)

    def flush(self, **loss: Any) -> None:
        self.move(self.optimizer.flush, self.tree(self.params), **loss)

    def move(self, method: Any, *trees: Any, **loss: Any) -> None:
        moved = self.compiled(method)(*trees, **tensors("mlx", loss))
        self.params |= {name.replace(".", "/"): leaf for name, leaf in mlx_utils.tree_flatten(moved)}

    def compiled(self, method: Any) -> Any:
        return method

    @property
    def handle(self) -> Any:
        return self.optimizer

    @property
    def state(self) -> Any:
        return self.optimizer.gradient_transformation_state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.gradient_transformation_state = state

    def read(self) -> Leaves:
        return {path: array(leaf).copy() for path, leaf in self.params.items()}

    def assign(self, params: Leaves) -> None:
        self.params = tensors("mlx", params)

    def save(self, folder: Path) -> None:
        mx.save_safetensors(
            str(folder / "run.safetensors"), dict(mlx_utils.tree_flatten([self.params, self.optimizer.state]))
        )

    def load(self, folder: Path) -> None:
        self.params, self.optimizer.state = mlx_utils.tree_unflatten(
            list(mx.load(str(folder / "run.safetensors")).items())
        )


class MlxCompile(MlxWrap):
    """Steps and flushes under `mx.compile`."""

    name = "mlx.wrap, mx.compile"
    exact = False
    transforms = ("accumulate", "several")
    mode = None

    def compiled(self, method: Any) -> Any:
        return mx.compile(method, inputs=self.optimizer.state, outputs=self.optimizer.state)


DRIVERS = [NumpyApply, TorchApply, TorchAttach, TorchClosure, TorchUpdates, Optax, MlxWrap, MlxCompile]
DRIVERS += [TensorFlowApply, Processor, ProcessorFunction, ProcessorXla, Session, ResourceSession]
