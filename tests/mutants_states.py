"""The mutants of numbers for logs, and of states that are kept in optimizers and go from one framework to another."""

from __future__ import annotations

from mutants import Mutant, Tests, of

MEASURING, INSPECTING, PORTABLE = (f"gradxform/{name}.py" for name in ("measuring", "inspecting", "portable"))
STATEFUL, VARIABLES, DOOR = (f"gradxform/{name}.py" for name in ("_stateful", "_variables", "_backend"))
PARAMETERS, ATTACH = (f"backends/gradxform_torch/{name}.py" for name in ("_parameters", "_attach"))
PROCESSOR = "backends/gradxform_tensorflow/_processor.py"
DUE = "gradxform/_due.py"
HELD, OPTIMIZER = (f"backends/gradxform_keras/{name}.py" for name in ("_held", "_optimizer"))


def measuring(*names: str) -> Tests:
    """Tests of measures, metrics and norms."""
    return of("measuring", *names)


def portable(*names: str) -> Tests:
    """Tests of states on their way."""
    return of("portable", *names)


def attach(*names: str) -> Tests:
    """Tests of what is attached to an optimizer of PyTorch."""
    return of("torch_attach", *names)


def keras(*names: str) -> Tests:
    """Cases of the wrapped optimizers, on Keras's default backend."""
    return tuple(f"tests/keras_cases.py::{name}" for name in names)


NUMBERS = "test_norms_and_factors_are_those_of_the_reference[numpy-eager]"
WITHIN = "test_what_is_within_its_limit_is_not_clipped[numpy-eager]"
ODD = "test_zero_and_what_is_not_finite[numpy-eager]"
PATHS = "test_nonfinite_paths[numpy]"

LOGS = (
    Mutant(
        "measure", "the norm before is the one after", MEASURING,
        "            whole.value,\n", "            rest.value,\n", measuring(NUMBERS),
    ),
    Mutant(
        "measure", "the factor is the inverse one", MEASURING,
        "g.compute(_quotient, whole, rest)", "g.compute(_quotient, rest, whole)", measuring(NUMBERS),
    ),
    Mutant(
        "measure", "the factor of zero is zero", MEASURING,
        "float(\"inf\"), 1.0 + after)", "float(\"inf\"), after)", measuring(ODD),
    ),
    Mutant(
        "measure", "the factor from zero to something is one", MEASURING,
        "xp.where(after > 0.0, float(\"inf\"), 1.0 + after)", "1.0 + 0.0 * after",
        measuring("test_noise_on_zeros_has_an_infinite_factor"),
    ),
    Mutant(
        "measure", "rounding is a clip", MEASURING,
        "before - before * xp.stack(slack), before)", "before, before)", measuring(WITHIN),
    ),
    Mutant(
        "measure", "the rounding to a narrow dtype is a clip", MEASURING,
        "if g.factor is not None or old.dtype != g.source.slots[g.source.kept[i]].dtype:", "if g.factor is not None:",
        measuring(WITHIN),
    ),
    Mutant(
        "measure", "a clip of the last bit is none", MEASURING,
        "        slack = 0.0\n", "        slack = 1e-6\n",
        measuring("test_the_limit_itself_is_no_clip_and_the_next_number_is_one[numpy]"),
    ),
    Mutant(
        "measure", "in place, an old leaf is taken for one that was not changed", MEASURING,
        "(own or new is not old)", "new is not old", measuring("test_in_place[numpy]", WITHIN),
    ),
    Mutant(
        "measure", "all must be clipped", MEASURING, "xp.any(xp.mask(active) & (", "xp.all(xp.mask(active) & (",
        measuring("test_one_small_gradient_that_is_clipped_beside_a_huge_one_is_seen[numpy-eager]"),
    ),
    Mutant(
        "measure", "what is finite is counted", MEASURING,
        "xp.where(xp.isfinite(norms), 0.0, 1.0)", "xp.where(xp.isfinite(norms), 1.0, 0.0)", measuring(ODD),
    ),
    Mutant(
        "measure", "what is out of scope is counted", MEASURING,
        "xp.sum(xp.where(xp.mask(active), xp.where(xp.isfinite(norms), 0.0, 1.0), 0.0))",
        "xp.sum(xp.where(xp.isfinite(norms), 0.0, 1.0))",
        measuring("test_a_frozen_gradient_is_not_measured", ODD),
    ),
    Mutant(
        "measure", "a chain is measured as one", MEASURING,
        'if inner.name == "chain" and name is None:', "if False:", measuring("test_names"),
    ),
    Mutant(
        "measure", "a foreign transform has the name of its type", MEASURING,
        'getattr(tx.update, "__qualname__", "").partition(".")[0] or type(tx).__name__', "type(tx).__name__",
        measuring("test_in_optax_around_optax_and_in_a_scan"),
    ),
    Mutant(
        "measure", "any object is a name", MEASURING,
        "if name is not None and not (isinstance(name, str) and name):", "if False:", measuring("test_bad_arguments"),
    ),
    Mutant(
        "metrics", "two of one name are one", MEASURING,
        "        while own in taken:\n", "        while False:\n", measuring("test_names"),
    ),
    Mutant(
        "metrics", "what is inside of a measured transform is not looked into", MEASURING,
        "        yield from _measures(state.inner)\n", "", measuring("test_names"),
    ),
    Mutant(
        "metrics", "dataclasses are not looked into", MEASURING,
        "    elif dataclasses.is_dataclass(state) and not isinstance(state, type):\n", "    elif False:\n",
        measuring("test_metrics_of_states_within_containers_of_all_kinds"),
    ),
    Mutant(
        "metrics", "dicts are not looked into", MEASURING,
        "    elif isinstance(state, Mapping):\n", "    elif False:\n",
        measuring("test_metrics_of_states_within_containers_of_all_kinds"),
    ),
    Mutant(
        "norms", "the order is ignored", INSPECTING,
        "view.norms(order)", "view.norms()", measuring("test_norms_of_any_order_and_dtype[1-numpy]"),
    ),
    Mutant(
        "norms", "they are filed under other paths", INSPECTING,
        "return {path: found[i] for i, path in enumerate(paths)}",
        "return {path: found[i] for i, path in enumerate(reversed(paths))}",
        measuring("test_norms_by_path[numpy-eager]"),
    ),
    Mutant(
        "nonfinite_paths", "what overflows as a sum of squares is not finite", INSPECTING,
        'view.norms(float("inf"))', "view.norms(1)", measuring(PATHS),
    ),
    Mutant(
        "nonfinite_paths", "integers are refused", INSPECTING,
        "view = view.focus([dtype in SINGLE | DOUBLE for dtype in view.source.dtypes])", "view = view",
        measuring(PATHS),
    ),
    Mutant(
        "nonfinite_paths", "the finite ones are named", INSPECTING,
        "if not np.isfinite(values[i])]", "if np.isfinite(values[i])]", measuring(PATHS),
    ),
    Mutant(
        "nonfinite_paths", "the error of a traced tree is the framework's own", INSPECTING,
        "    except Exception as error:\n", "    except KeyError as error:\n",
        measuring("test_nonfinite_paths_within_traced_code_say_what_to_do"),
    ),
    Mutant(
        "keras.wrap", "a measured transform's masked steps are all the optimizer's", DUE,
        '    if tx.name == "measure":\n', "    if False:\n",
        keras("test_what_a_masked_part_leaves_out_is_its_own_affair"),
    ),
    Mutant(
        "keras.wrap", "a measured chain's masked steps are all the optimizer's", DUE,
        "    while isinstance(state, MeasureState):\n        state = state.inner\n", "",
        keras("test_what_a_masked_part_leaves_out_is_its_own_affair"),
    ),
)  # fmt: skip

RUNS = "test_a_run_goes_on_in_another_framework"
OWN = "test_from_numpy_has_memory_of_its_own"

TRAVELS = (
    Mutant(
        "stateful", "the rows of a table are in the order of the leaves", STATEFUL,
        "sorted(range(len(paths)), key=paths.__getitem__)", "range(len(paths))",
        portable("test_rows_of_a_table_are_in_the_order_of_the_paths[torch]"),
    ),
    Mutant(
        "to_numpy", "the arrays share memory", PORTABLE,
        "else np.array(_values(", "else np.asarray(_values(",
        portable("test_to_numpy_gives_a_state_of_its_own_memory[torch]"),
    ),
    Mutant(
        "to_numpy", "the error of a traced state is the framework's own", PORTABLE,
        "    except Exception as error:\n", "    except KeyError as error:\n",
        portable("test_traced_states_have_no_values"),
    ),
    Mutant(
        "from_numpy", "leaves find their places by their order", PORTABLE,
        "_like(what, backend, path, given[path], leaf) for path, leaf in places]",
        "_like(what, backend, path, value, leaf) for (path, leaf), value in zip(places, given.values())]",
        portable(f"{RUNS}[numpy-torch]"),
    ),
    Mutant(
        "from_numpy", "the dtype is the state's own", PORTABLE,
        "backend.placed(cast, like)", "backend.placed(array, like)",
        portable("test_a_state_of_float32_goes_on_in_float64"),
    ),
    Mutant(
        "from_numpy", "leaves that only the state has are left out", PORTABLE,
        "    if missing or strange:\n", "    if missing:\n", portable("test_what_does_not_fit"),
    ),
    Mutant(
        "from_numpy", "shapes may differ", PORTABLE,
        "    if array.shape != shape:\n", "    if False:\n", portable("test_what_does_not_fit"),
    ),
    Mutant(
        "from_numpy", "numbers may become counts", PORTABLE,
        "array.astype(dtype) if _kind(array.dtype) == _kind(dtype) else None", "array.astype(dtype)",
        portable("test_what_does_not_fit"),
    ),
    Mutant(
        "from_numpy", "two leaves of one path are one", PORTABLE,
        "if len(found) < sum(leaf is not None for leaf in leaves):", "if False:", portable("test_what_does_not_fit"),
    ),
    Mutant(
        "from_numpy", "an open npz is no tree", PORTABLE,
        "if isinstance(state, Mapping) and not isinstance(state, dict):", "if False:",
        portable("test_an_npz_is_a_state_where_there_is_numpy_alone"),
    ),
    Mutant(
        "from_numpy", "one array is a tree with one leaf", PORTABLE,
        "if len(likes) == 1 and likes[0] is like:", "if False:",
        portable("test_one_array_is_enough_of_a_likeness[numpy]"),
    ),
    Mutant(
        "backend", "a container of JAX's with NumPy's arrays is opaque", DOOR,
        "            if owners == {\"numpy\"} and not strange and container is None:\n", "            if False:\n",
        portable("test_containers_that_only_one_framework_knows"),
    ),
    Mutant(
        "numpy.placed", "the array itself", "backends/gradxform_numpy/backend.py",
        "    return np.array(array)\n", "    return array\n", portable(f"{OWN}[numpy]"),
    ),
    Mutant(
        "jax.placed", "wherever JAX puts it", "backends/gradxform_jax/backend.py",
        "jax.device_put(array, like.sharding) if committed else jnp.array(array)", "jnp.asarray(array, np.float32)",
        portable("test_dtypes[jax]"),
    ),
    Mutant(
        "tensorflow.placed", "in float32", "backends/gradxform_tensorflow/backend.py",
        "    with tf.device(like.device):\n        return tf.constant(array)",
        "    return tf.constant(array, tf.float32)",
        portable("test_dtypes[tensorflow]"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a state that is set is forgotten", PROCESSOR,
        'self._assign(matched("tensorflow.GradientProcessor", state, self.state))', "pass",
        of("tensorflow_processor", "test_the_state_can_be_set_to_one_from_elsewhere"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "two variables of one name have one state", VARIABLES,
        "        keys[key] = None\n", "        keys[path] = None\n",
        of("tensorflow_processor", "test_two_variables_of_one_name_have_a_state_each"),
    ),
    Mutant(
        "keras.wrap", "a state that is set is forgotten", HELD,
        'self._assign(matched("keras.wrap", state, self.state()))', "pass",
        keras("test_the_state_can_be_set_to_one_from_elsewhere"),
    ),
    Mutant(
        "keras.wrap", "a state may be set before there is one", OPTIMIZER,
        "        if not self.built:\n            raise", "        if False:\n            raise",
        keras("test_the_state_can_be_set_to_one_from_elsewhere"),
    ),
)  # fmt: skip

ANY = "test_any_optimizer_steps_as_after_apply[SGD]"
SKIPS = "test_a_step_that_the_scaler_skips_leaves_the_state_alone"
UNSCALED = "test_with_a_scaler_the_chain_sees_unscaled_gradients"
RESTORED = "test_a_run_that_is_saved_and_restored_goes_on_bit_by_bit"

ATTACHED = (
    Mutant(
        "torch.init", "paths have dots", PARAMETERS,
        'name.replace(".", "/") for name, _ in named', "name for name, _ in named", attach(ANY),
    ),
    Mutant(
        "torch.attach", "the state stands still", ATTACH,
        "self._held = self._held._replace(state=state)\n        if scale", "if scale", attach(ANY),
    ),
    Mutant(
        "torch.attach", "a fused optimizer's gradients are scaled", ATTACH,
        'getattr(optimizer, "grad_scale", None), getattr(', "None, getattr(", attach(UNSCALED),
    ),
    Mutant(
        "torch.attach", "a fused optimizer unscales once more", ATTACH,
        "            optimizer.grad_scale = None\n", "            pass\n", attach(UNSCALED),
    ),
    Mutant(
        "torch.attach", "a step that a fused optimizer skips moves the state", PARAMETERS,
        "if found_inf is not None and tx.stateful:", "if False:", attach(SKIPS),
    ),
    Mutant(
        "torch.attach", "only steps that are skipped move the state", "gradxform/_formulas.py",
        "    return equal(x, 0.0)", "    return x > 0.0", attach(SKIPS, UNSCALED),
    ),
    Mutant(
        "torch.attach", "the state_dict has no state", ATTACH,
        "            state_dict[self._key()] = _by_path(self._held.state)\n", "            pass\n",
        attach("test_two_at_once_run_in_the_order_they_were_attached_in"),
    ),
    Mutant(
        "torch.attach", "the state_dict's state is not loaded", ATTACH,
        "            self._held, self._loaded = self._loaded, None\n", "            pass\n", attach(RESTORED),
    ),
    Mutant(
        "torch.attach", "two have one place in the state_dict", ATTACH,
        'return f"{_KEY}_{rank}" if rank else _KEY', "return _KEY",
        attach("test_two_at_once_run_in_the_order_they_were_attached_in"),
    ),
    Mutant(
        "torch.attach", "one that was removed keeps its place", ATTACH,
        "            _attached[optimizer].remove(self)\n", "            pass\n",
        attach("test_two_at_once_run_in_the_order_they_were_attached_in"),
    ),
    Mutant(
        "torch.attach", "hooks stay", ATTACH,
        "        for hook in self._hooks:\n            hook.remove()\n", "",
        attach(ANY, "test_as_a_context_manager"),
    ),
    Mutant(
        "torch.attach", "an old state_dict is loaded without a word", ATTACH,
        "            warnings.warn(\n", "            str(\n",
        attach("test_a_state_dict_from_before_the_attachment_is_loaded_with_a_warning"),
    ),
    Mutant(
        "torch.attach", "the optimizer is kept alive", ATTACH,
        " | None] = weakref.ref(optimizer)", " | None] = lambda: optimizer",
        attach("test_the_optimizer_is_freed_with_what_is_attached"),
    ),
    Mutant(
        "torch.attach", "parameters that are added have no state", ATTACH,
        "            self._take_in(optimizer)\n", "            pass\n", attach("test_groups_that_are_added_later"),
    ),
    Mutant(
        "torch.attach", "with parameters that are added all begins anew", ATTACH,
        "_by_path(fresh.state) | _by_path(self._held.state), fresh.state)", "_by_path(fresh.state), fresh.state)",
        attach("test_groups_that_are_added_later"),
    ),
    Mutant(
        "torch.attach", "a wrapped optimizer is refused", "backends/gradxform_torch/_optimizers.py",
        "    while any(kind.__module__", "    while False and any(kind.__module__",
        of("torch_trainers", "test_attach_takes_lightnings_own_optimizer", "test_accelerate"),
    ),
    Mutant(
        "torch.attach", "a step within a step transforms once more", ATTACH,
        "if is_inner_call(optimizer) or ", "if ", attach("test_a_class_that_calls_the_step_of_its_base"),
    ),
    Mutant(
        "torch.attach", "a checkpoint's step of zeros moves the state", ATTACH,
        " or is_for_show(optimizer, args, kwargs):", ":", attach("test_distributed_checkpoints_leave_the_state_alone"),
    ),
    Mutant(
        "torch.attach", "a step that was left out moves the parameters", ATTACH,
        "        if due is not True and not due:\n", "        if False:\n",
        attach("test_a_step_that_is_left_out_leaves_the_optimizer_alone"),
    ),
    Mutant(
        "torch.attach", "what does not fit is taken for the state's parameters", ATTACH,
        "        self._held = fresh._replace(state=matched(\"torch.attach\", state, fresh.state))",
        "        self._held = fresh\n"
        "        self._held = fresh._replace(state=matched(\"torch.attach\", state, fresh.state))",
        attach("test_a_state_that_does_not_fit_changes_nothing"),
    ),
    Mutant(
        "torch.attach", "the closure's gradients are not followed", ATTACH,
        "                loss = closure()\n            self._transform(optimizer)\n",
        "                loss = closure()\n",
        attach("test_the_gradients_that_a_closure_makes"),
    ),
)  # fmt: skip

_TWO = "test_on_two_processes"
_PLAIN_TORCH = "backends/gradxform_torch/backend.py"
SHARDED, SHARDED_NORMS = (f"backends/gradxform_torch/{name}.py" for name in ("_sharded", "_sharded_norms"))


def sharded(*names: str) -> Tests:
    """Cases of sharded tensors; one group of processes runs them all."""
    return of("torch_sharded", *(f"{_TWO}[{name}]" for name in names))


SHARDS = (
    Mutant(
        "torch.placed", "where NumPy's memory is", _PLAIN_TORCH,
        "_sharded.alongside(like, from_numpy(array).to(like.device))", "_sharded.alongside(like, from_numpy(array))",
        portable("test_a_state_goes_to_the_devices_of_its_likeness"),
    ),
    Mutant(
        "torch.alongside", "parameters stay sharded as they are", _PLAIN_TORCH,
        "    return [_sharded.alongside(leaf, array) for leaf, array in zip(leaves, arrays, strict=True)]",
        "    return list(arrays)", sharded("parameters that are sharded otherwise, and limits from their norms"),
    ),
    Mutant(
        "torch.norms", "the norm of a sharded gradient is that of the shard", SHARDED_NORMS,
        "    found = measure([local(leaf) for leaf in leaves], ord)\n",
        "    return measure([local(leaf) for leaf in leaves], ord)\n",
        sharded("global_norm is that of the whole, a plain tensor with the same bits everywhere"),
    ),
    Mutant(
        "torch.norms", "each leaf's norm is told by itself", SHARDED_NORMS,
        "        here = [i for i, own in enumerate(meshes) if own is None or own == mesh]\n",
        "        [_told(stacked[:, :1], mesh, {0}) for _ in meshes]\n"
        "        here = [i for i, own in enumerate(meshes) if own is None or own == mesh]\n",
        sharded("a norm costs one collective for all leaves, rescaling and elements none"),
    ),
    Mutant(
        "torch.dense", "summands are taken for gradients", SHARDED,
        "if not any(placement.is_partial() for placement in leaf.placements):", "if True:",
        sharded("a gradient of summands is replaced by its sum"),
    ),
    Mutant(
        "torch.elementwise", "the elements of each shard are numbered from zero", SHARDED,
        "    if not is_sharded(leaf):\n        return formula\n", "    return formula\n",
        sharded("add_noise(0.1, 7), rows"),
    ),
)  # fmt: skip

STATES = LOGS + TRAVELS + ATTACHED + SHARDS
