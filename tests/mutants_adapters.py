"""The mutants of what stands between a transform and a framework's optimizers and backward passes."""

from __future__ import annotations

from mutants import Mutant, Tests, of

BACKWARD, OPERANDS, INSPECTING = (f"gradxform/{name}.py" for name in ("backward", "_operands", "inspecting"))
FLAT, COMBINING, STATEFUL = (f"gradxform/{name}.py" for name in ("_flat", "combining", "_stateful"))
VARIABLES, _NUMPY = "gradxform/_variables.py", "backends/gradxform_numpy/backend.py"
APPLY, PAIRS, PROCESSOR, OVERRIDE, REPLICAS = (
    f"backends/gradxform_tensorflow/{name}.py" for name in ("_apply", "_pairs", "_processor", "_override", "_replicas")
)
WRAP, OPTIMIZER, HELD = (f"backends/gradxform_keras/{name}.py" for name in ("_wrap", "_optimizer", "_held"))
JAX, TENSORFLOW, TORCH = (f"backends/gradxform_{name}/_backward.py" for name in ("jax", "tensorflow", "torch"))
KERAS_LAYERS, MODULES = "backends/gradxform_keras/_layers.py", "backends/gradxform_torch/_modules.py"
BACKENDS_DOOR = "gradxform/_backend.py"
CONFIG = "test_a_config_is_json_and_makes_the_optimizer_again"
FROZEN = "test_frozen_variables_stay_bit_by_bit_and_the_others_move_as_if_alone"
SKIPPED = "test_a_step_that_is_skipped_leaves_the_optimizer_alone"
IDENTITY, MOVES_ON = "test_the_identity_changes_no_bit", "test_a_state_moves_on_as_numpys_does"
ONE_RUN = "test_a_run_of_a_session_moves_the_state_once_whatever_it_fetches"
ORDER = "test_pairs_in_another_order_find_their_own_state"
OWN_PARAMETERS = "test_parameters_are_the_processors_variables_whatever_the_order"
ONE_TREE = "test_several_outputs_of_one_op_are_one_tree"
TRACERS = "test_arrays_anywhere_in_a_transformation_may_be_tracers_of_what_is_within_the_gradient"


def backward(*names: str) -> Tests:
    """Tests of the identity with a backward pass of one's own."""
    return of("backward", *names)


def tensorflow(*names: str) -> Tests:
    """Tests of `apply`."""
    return of("tensorflow", *names)


def processor(*names: str) -> Tests:
    """Tests of the processor."""
    return of("tensorflow_processor", *names)


def override(*names: str) -> Tests:
    """Tests of gradients of single ops."""
    return of("tensorflow_override", *names)


def replicas(*names: str) -> Tests:
    """Tests under `tf.distribute`, which run all cases in one process."""
    return of("tensorflow_distribute", *names)


def keras(*names: str) -> Tests:
    """Cases of the wrapped optimizers, on Keras's default backend."""
    return tuple(f"tests/keras_cases.py::{name}" for name in names)


ON_BACKWARD = (
    Mutant(
        "on_backward", "a transformation with a state is let in", BACKWARD,
        "    if tx.stateful:", "    if False:", backward("test_a_stateful_transformation"),
    ),
    Mutant(
        "on_backward", "what flows back is left as it is", BACKWARD,
        "return [results[i] for i in places]", "return list(upstream)",
        backward("test_case_7_the_gradient_of_one_op[jax-scale(5.0)-5.0]"),
    ),
    Mutant(
        "on_backward", "each leaf is transformed by itself", BACKWARD,
        "rebuild(numbers).rule(view, None, Context(None, {}))[0].results()",
        "[None if slot is None else rebuild(numbers)([slot])[0] for slot in slots]",
        backward("test_norms_are_over_the_tree[jax]"),
    ),
    Mutant(
        "on_backward", "paths are numbers", BACKWARD,
        "lambda: backend.paths(skeleton))", "lambda: list(map(str, range(len(slots)))))",
        backward("test_paths_are_those_of_the_tree[jax]"),
    ),
    Mutant(
        "on_backward", "limits that are tracers are closed over", BACKWARD,
        "rebuild(numbers).rule(", "tx.rule(", backward(TRACERS),
    ),
    Mutant(
        "on_backward", "leaves without a gradient are lost", BACKWARD,
        "        out = list(leaves)\n", "        out: list[Any] = [None] * len(leaves)\n",
        backward("test_forward_is_bit_by_bit_the_same[jax]"),
    ),
    Mutant(
        "on_backward", "integers are taken for what has a gradient", BACKWARD,
        "return dtype in SINGLE | DOUBLE or dtype", "return True or dtype", backward("test_integers_beside_what_flows"),
    ),
    Mutant(
        "on_backward", "float64 passes by", BACKWARD,
        "return dtype in SINGLE | DOUBLE or dtype", "return dtype in SINGLE or dtype",
        backward("test_dtypes[torch-float64]"),
    ),
    Mutant(
        "on_backward", "gradients of eight bits pass by", BACKWARD,
        '("float8_", "float6_", "float4_")', '("float6_", "float4_")',
        backward("test_a_gradient_of_eight_bits_is_refused"),
    ),
    Mutant(
        "operands", "transformations within transformations are not looked into", OPERANDS,
        "(name, _replaced(item, backend, swap)) for name, item",
        "(name, swap(item) if isinstance(item, backend.types) else item) for name, item", backward(TRACERS),
    ),
    Mutant(
        "operands", "the rules of a partition are not looked into", OPERANDS,
        "if type(value) is dict:", "if type(value) is list:", backward(TRACERS),
    ),
    Mutant(
        "operands", "what is given by name is lost", OPERANDS,
        "(*positional, **{name: item for name, item in given if name is not None})", "(*positional)",
        backward(TRACERS),
    ),
    Mutant(
        "operands", "arrays come back in another order", OPERANDS,
        "Iterator[Array] = iter(arrays)", "Iterator[Array] = iter(arrays[::-1])", backward(TRACERS),
    ),
    Mutant(
        "numpy.on_backward", "the leaves are given back, and no gradient will ever flow", _NUMPY,
        '    """NumPy has no backward pass."""\n    raise TypeError(\n',
        "    return list(leaves)\n    raise TypeError(\n",
        backward("test_numpy_has_no_backward_pass"),
    ),
    Mutant(
        "jax.on_backward", "the leaves are given back", "backends/gradxform_jax/backend.py",
        "return _backward.on_backward(leaves, numbers, function)", "return list(leaves)",
        backward("test_case_7_the_gradient_of_one_op[jax-scale(5.0)-5.0]"),
    ),
    Mutant(
        "jax.on_backward", "what flows back is left as it is", JAX,
        "return function(upstream, numbers), None", "return upstream, None",
        backward("test_case_7_the_gradient_of_one_op[jax-jit-scale(5.0)-5.0]"),
    ),
    Mutant(
        "jax.on_backward", "limits are closed over", JAX,
        "return _same(function, list(leaves), list(numbers))",
        "return _same(lambda upstream, _: function(upstream, list(numbers)), list(leaves), [])",
        backward(TRACERS),
    ),
    Mutant(
        "tensorflow.on_backward", "the leaves are given back", "backends/gradxform_tensorflow/backend.py",
        "return _backward.on_backward(leaves, numbers, function)", "return list(leaves)",
        backward("test_case_7_the_gradient_of_one_op[tensorflow-scale(5.0)-5.0]"),
    ),
    Mutant(
        "tensorflow.on_backward", "what flows back is left as it is", TENSORFLOW,
        "function(list(upstream), kept)", "list(upstream)",
        backward("test_case_7_the_gradient_of_one_op[tensorflow-function-scale(5.0)-5.0]"),
    ),
    Mutant(
        "torch.on_backward", "the leaves are given back", "backends/gradxform_torch/backend.py",
        "return _backward.on_backward(leaves, numbers, function)", "return list(leaves)",
        backward("test_case_7_the_gradient_of_one_op[torch-scale(5.0)-5.0]"),
    ),
    Mutant(
        "torch.on_backward", "what flows back is left as it is", TORCH,
        "*ctx.function(list(upstream), list(ctx.saved_tensors))", "*upstream",
        backward("test_case_7_the_gradient_of_one_op[torch-scale(5.0)-5.0]"),
    ),
    Mutant(
        "torch.on_backward", "what comes out shares its memory with what went in", TORCH,
        "return (given[0].clone(),)", "return (given[0].detach(),)",
        backward("test_writing_into_the_output_does_not_reach_the_input"),
    ),
    Mutant(
        "torch.on_backward", "the limits' places among the gradients are forgotten", TORCH,
        ", *[None] * ctx.rest", "", backward("test_a_limit_that_is_an_array[torch]"),
    ),
    Mutant(
        "torch.on_backward", "no rule for vmap", TORCH,
        "class _Same(torch.autograd.Function):\n    generate_vmap_rule = True", "class _Same(torch.autograd.Function):",
        backward("test_vmap_clips_each_example"),
    ),
)  # fmt: skip

CASE_9 = "test_case_9_the_value_of_one_function_and_the_derivative_of_another"
LAYERS = (
    Mutant(
        "reverse_gradient", "the gradient is not reversed", BACKWARD,
        "scale_by(factor), scale_by(-1.0)", "scale_by(factor), scale_by(1.0)", backward("test_reversed[jax]"),
    ),
    Mutant(
        "straight_through", "results of two dtypes are let in", BACKWARD,
        "if dtypes[0] != dtypes[1]:", "if False:", backward("test_results_that_do_not_fit[jax]"),
    ),
    Mutant(
        "straight_through", "results of two shapes are let in", BACKWARD,
        "if None not in shapes and not may_agree(*shapes):", "if False:", backward("test_results_that_do_not_fit[jax]"),
    ),
    Mutant(
        "numpy.stop_gradient", "the leaf is given back, as if something flowed back", _NUMPY,
        "return on_backward([leaf], (), list)", "return leaf", backward("test_numpy_has_none_of_them"),
    ),
    Mutant(
        "numpy.straight_through", "the values are given back, as if something flowed back", _NUMPY,
        "return on_backward(values, leaves, list)", "return list(values)",
        backward("test_functions_that_leave_the_framework"),
    ),
    Mutant(
        "jax.stop_gradient", "what flows back goes on", "backends/gradxform_jax/backend.py",
        "return lax.stop_gradient(leaf)\n", "return leaf\n", backward("test_stopped[jax]"),
    ),
    Mutant(
        "jax.straight_through", "the derivative is that of the value", JAX,
        "return primals[0], tangents[1]", "return primals[0], tangents[0]", backward(f"{CASE_9}[jax]"),
    ),
    Mutant(
        "tensorflow.stop_gradient", "what flows back goes on", "backends/gradxform_tensorflow/backend.py",
        "return tf.stop_gradient(leaf)\n", "return leaf\n", backward("test_stopped[tensorflow]"),
    ),
    Mutant(
        "tensorflow.straight_through", "the derivative is that of the value", TENSORFLOW,
        "lambda upstream: (None, upstream)", "lambda upstream: (upstream, None)", backward(f"{CASE_9}[tensorflow]"),
    ),
    Mutant(
        "torch.stop_gradient", "what flows back goes on", "backends/gradxform_torch/backend.py",
        "return leaf.detach()\n", "return leaf\n", backward("test_stopped[torch]"),
    ),
    Mutant(
        "torch.straight_through", "the derivative is that of the value", TORCH,
        "return None, upstream\n", "return upstream, None\n", backward(f"{CASE_9}[torch]"),
    ),
)  # fmt: skip

AS_MODULES = (
    Mutant(
        "jax.on_backward", "a leaf without a batch stays without", JAX,
        "if len(leaves) + len(numbers) == 1:", "if True:", backward("test_a_batch_of_some_leaves_and_limits_alone"),
    ),
    Mutant(
        "torch.on_backward", "a leaf without a batch stays without", TORCH,
        "torch.where(either.to(tensor.device), tensor, tensor) for", "tensor.clone() for",
        backward("test_a_batch_of_some_leaves_and_limits_alone"),
    ),
    Mutant(
        "tensorflow.on_backward", "limits are read on the way back", TENSORFLOW,
        "kept = list(map(tf.identity, numbers))", "kept = numbers",
        backward("test_a_limit_of_tensorflow_in_a_loop_and_a_branch[True]"),
    ),
    Mutant(
        "keras.GradientTransform", "the gradient is left alone", KERAS_LAYERS,
        "return self._identity(inputs)", "return inputs", keras("test_a_layer_that_clips_what_flows_back"),
    ),
    Mutant(
        "keras.GradientReversal", "the factor is one", KERAS_LAYERS,
        "reverse_gradient(inputs, keras.ops.convert_to_tensor(self.scale))", "reverse_gradient(inputs)",
        keras("test_a_layer_that_reverses_what_flows_back"),
    ),
    Mutant(
        "torch.GradientTransform", "the gradient is left alone", MODULES,
        "return on_backward(self.tx)(x)", "return x", backward("test_modules"),
    ),
    Mutant(
        "torch.GradientReversal", "the factor is one", MODULES,
        "reverse_gradient(x, self.scale)", "reverse_gradient(x)", backward("test_modules"),
    ),
    Mutant(
        "a backend of another framework", "it is not among those that are known", BACKENDS_DOOR,
        "    return *FRAMEWORKS, *_others\n", "    return FRAMEWORKS\n",
        of("discovery", "test_parity_runs_it_once_it_is_imported"),
    ),
    Mutant(
        "a backend of another framework", "it is looked for before its framework is imported", BACKENDS_DOOR,
        "if name in sys.modules and (name in FRAMEWORKS or extends(name)):", "if name in FRAMEWORKS or extends(name):",
        of("discovery", "test_a_framework_that_is_not_imported_is_left_alone"),
    ),
    Mutant(
        "a backend of another framework", "its tree engine is not asked", BACKENDS_DOOR,
        "if name in sys.modules or name in _others:\n", "if name in FRAMEWORKS and name in sys.modules:\n",
        of("discovery", "test_its_tree_engine_opens_what_no_other_knows"),
    ),
    Mutant(
        "keras.Variable", "it is no leaf", BACKENDS_DOOR,
        "        return leaf.value\n", "        return leaf\n", keras("test_keras_s_variables_are_leaves"),
    ),
    Mutant(
        "override_gradients", "functions within are not looked at", OVERRIDE,
        "    _check_functions(graph, made, names)\n", "",
        override("test_a_function_that_is_built_in_the_context_is_refused[cond]"),
    ),
    Mutant(
        "override_gradients", "functions in functions are not looked at", OVERRIDE,
        "            waiting += [(whose, inner) for inner in _functions(node)]\n", "",
        override("test_a_function_that_is_built_in_the_context_is_refused[function in a function]"),
    ),
    Mutant(
        "override_gradients", "a type that no op has is let in", OVERRIDE,
        "if op_def_registry.get(kind) is None:", "if False:", override("test_a_type_that_no_op_has[NoSuchOp]"),
    ),
)  # fmt: skip
"""Layers and modules, and what was found in a review."""

NUMBERS = (
    Mutant(
        "global_norm", "the order is ignored", INSPECTING,
        "view.global_norm(order)", "view.global_norm()", of("numpy", "test_the_global_norm_as_a_number"),
    ),
    Mutant(
        "global_norm", "the norm is that of each leaf", INSPECTING,
        "view.global_norm(order)", "view.norms(order)", (INSPECTING,),
    ),
    Mutant(
        "global_norm", "a norm of float64 is given in float32", INSPECTING,
        '"float32" if norm.single is True else "float64"', '"float32"', of("numpy", "test_the_global_norm_as_a_number"),
    ),
    Mutant(
        "global_norm", "a tree without leaves has none", INSPECTING,
        "return np.zeros((), np.float32)", "return None", of("numpy", "test_the_global_norm_as_a_number"),
    ),
)  # fmt: skip

STATES = (
    Mutant(
        "flat", "a view is opened as a tuple of arrays", FLAT,
        "    if isinstance(tree, Flat):\n", "    if False:\n",
        processor("test_nested_masks_know_the_paths_of_the_variables"),
    ),
    Mutant(
        "flat", "the view of the leaves in scope has the numbers of its leaves for paths", FLAT,
        "source.structure, source.find_paths)", "source.structure, lambda: list(map(str, range(len(source.slots)))))",
        processor("test_nested_masks_know_the_paths_of_the_variables"),
    ),
    Mutant(
        "masked", "the state inside forgets an adapter's paths", COMBINING,
        "return inside.scoped_tree() if found is None else found", "return inside.scoped_tree()",
        processor("test_nested_masks_know_the_paths_of_the_variables"),
    ),
    Mutant(
        "masked", "there is a state for what the mask leaves out", COMBINING,
        "inside = view.focus(mask(view))", "inside = view",
        processor("test_every_mode_gives_bit_by_bit_what_update_gives_on_a_list[eager-chain]",
                  "test_nested_masks_know_the_paths_of_the_variables"),
    ),
    Mutant(
        "stateful", "an adapter's first state has the numbers of its variables for paths", STATEFUL,
        "lambda: list(paths)", "lambda: list(map(str, range(len(zeros))))",
        processor("test_a_pattern_that_matches_no_variable"),
    ),
    Mutant(
        "stateful", "an adapter's first state is that of float32 parameters", STATEFUL,
        "np.zeros(tuple(shape), np.dtype(dtype))", "np.zeros(tuple(shape), np.float32)",
        processor("test_the_state_has_the_dtypes_of_sums"),
    ),
    Mutant(
        "stateful", "an adapter's first state is that of numbers", STATEFUL,
        "np.zeros(tuple(shape), np.dtype(dtype))", "np.zeros((), np.dtype(dtype))",
        processor("test_its_variables_are_its_state_and_none_of_the_models"),
    ),
    Mutant(
        "tensorflow.apply", "a Keras variable's path is its name", VARIABLES,
        'path = getattr(variable, "path", None)', "path = None",
        tensorflow("test_the_path_of_a_keras_variable_is_its_path"),
    ),
)  # fmt: skip

ON_PAIRS = (
    Mutant(
        "tensorflow.apply", "a transformation with a state is let in", APPLY,
        "    if tx.stateful:", "    if False:", tensorflow("test_a_stateful_transformation"),
    ),
    Mutant(
        "tensorflow.apply", "the given parameters are forgotten", APPLY,
        "given, None, params)", "given, None, None)", tensorflow("test_parameters_are_the_variables_or_those_given"),
    ),
    Mutant(
        "tensorflow.pairs", "a dict is taken for pairs", PAIRS,
        "isinstance(grads_and_vars, (str, dict))", "isinstance(grads_and_vars, str)",
        tensorflow("test_what_is_no_list_of_pairs"),
    ),
    Mutant(
        "tensorflow.pairs", "two pairs may be of one variable", PAIRS,
        "if identity_of(variable) in seen:", "if False:", tensorflow("test_a_variable_in_two_pairs"),
    ),
    Mutant(
        "tensorflow.pairs", "a gradient of another shape is let in", PAIRS,
        " and not may_agree(shape, wanted):", " and False:",
        tensorflow("test_a_gradient_of_another_shape_than_its_variable"),
    ),
    Mutant(
        "tensorflow.pairs", "a pair the wrong way round is not noticed", PAIRS,
        "if _is_variable(gradient) and not _is_variable(variable):", "if False:",
        tensorflow("test_the_pair_the_wrong_way_round"),
    ),
    Mutant(
        "tensorflow.pairs", "Keras's variable and the one inside of it are two", PAIRS,
        'getattr(variable, "_value", variable))', "variable)",
        processor("test_a_keras_variable_and_the_one_of_tensorflow_inside_of_it_are_one"),
    ),
    Mutant(
        "tensorflow.pairs", "without parameters the variables are not handed on", PAIRS,
        "slots.variables if params is None else params", "params", processor(OWN_PARAMETERS),
    ),
    Mutant(
        "tensorflow.pairs", "the given parameters are forgotten", PAIRS,
        "slots.variables if params is None else params", "slots.variables", processor(OWN_PARAMETERS),
    ),
    Mutant(
        "tensorflow.pairs", "nothing is left to apply, and no one is told", PAIRS,
        "if len(skipped) == sum(", "if len(skipped) > sum(", tensorflow("test_when_all_is_stopped"),
    ),
    Mutant(
        "tensorflow.pairs", "a gradient that is None counts as one that is left", PAIRS,
        "sum(gradient is not None for gradient in gradients)", "len(gradients)",
        tensorflow("test_when_all_but_none_is_stopped"),
    ),
    Mutant(
        "tensorflow.pairs", "paths are numbers", PAIRS,
        "lambda: slots.paths)", "lambda: list(map(str, range(len(slots.paths)))))",
        tensorflow("test_the_path_of_a_tensorflow_variable_is_its_name"),
    ),
    Mutant(
        "tensorflow.pairs", "the transformation sees a replica's own gradients", PAIRS,
        "gradients, replicas = _replicas.summed(slots.gradients)",
        "gradients, replicas = slots.gradients, _replicas.summed(slots.gradients)[1]",
        replicas("test_ours_moves_the_variable_by_the_limit",
                 "test_different_gradients_are_summed_before_they_are_transformed"),
    ),
    Mutant(
        "tensorflow.pairs", "each replica is given the whole", PAIRS,
        "_replicas.shared(view.results(), replicas)", "view.results()",
        replicas("test_ours_moves_the_variable_by_the_limit"),
    ),
    Mutant(
        "tensorflow.replicas", "gradients are averaged", REPLICAS,
        "ReduceOp.SUM", "ReduceOp.MEAN", replicas("test_different_gradients_are_summed_before_they_are_transformed"),
    ),
    Mutant(
        "tensorflow.replicas", "a share is the whole", REPLICAS,
        "return whole / tf.cast(count, whole.dtype)", "return whole + tf.cast(0, whole.dtype)",
        replicas("test_ours_moves_the_variable_by_the_limit"),
    ),
    Mutant(
        "tensorflow.replicas", "all replicas are given all rows", REPLICAS,
        "tf.where(tf.equal(number, 0), tf.size(whole.indices), 0)", "tf.size(whole.indices)",
        replicas("test_rows_that_several_replicas_have_are_summed"),
    ),
    Mutant(
        "tensorflow.replicas", "no replica is given the rows", REPLICAS,
        "tf.where(tf.equal(number, 0), tf.size(whole.indices), 0)",
        "tf.where(tf.equal(number, 2), tf.size(whole.indices), 0)",
        replicas("test_rows_that_several_replicas_have_are_summed"),
    ),
    Mutant(
        "tensorflow.replicas", "rows are divided as dense gradients are", REPLICAS,
        "tf.IndexedSlices(whole.values[:rows], whole.indices[:rows], whole.dense_shape)",
        "tf.IndexedSlices(whole.values / tf.cast(count, whole.dtype), whole.indices, whole.dense_shape)",
        replicas("test_an_embedding_trains_as_on_one_device"),
    ),
    Mutant(
        "tensorflow.replicas", "sparse gradients are made dense", REPLICAS,
        "g if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g)", "tf.convert_to_tensor(g)",
        replicas("test_an_embedding_trains_as_on_one_device"),
    ),
    Mutant(
        "tensorflow.replicas", "sums come to other gradients where one is None", REPLICAS,
        "        out[i] = total\n", "        out[there.index(i)] = total\n", replicas("test_none_stays_none"),
    ),
)  # fmt: skip

THE_PROCESSOR = (
    Mutant(
        "tensorflow.GradientProcessor", "the state is not kept", PROCESSOR,
        "assigned = self._assign(new)", "assigned = self._assign(old)", processor(ORDER),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "in a graph the state does not move on", PROCESSOR,
        "with tf.control_dependencies(assigned):", "with tf.control_dependencies([]):", processor(ONE_RUN),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a gradient does not wait for the state", PROCESSOR,
        "    return tf.identity(gradient)", "    return gradient", processor(ONE_RUN),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a sparse gradient does not wait for the state", PROCESSOR,
        "return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)",
        "return gradient", processor("test_a_sparse_gradient_moves_the_state_of_a_session"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a gradient goes to the variable of the same number", PROCESSOR,
        "gradients[place] = gradient", "gradients[len(places)] = gradient", processor(ORDER),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a result comes back to the variable of the same number", PROCESSOR,
        "places.append(place)", "places.append(len(places))", processor(ORDER),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a variable it was not made for is the first one", PROCESSOR,
        "self.places.get(pairs.identity_of(variable))", "self.places.get(pairs.identity_of(variable), 0)",
        processor("test_a_variable_it_was_not_made_for"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a variable may be given twice", PROCESSOR,
        "if self.places[pairs.identity_of(variable)] != i:", "if False:",
        processor("test_a_variable_given_twice", "test_a_keras_variable_given_twice_by_two_names"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "variables of one name are one", PROCESSOR,
        "self.places = {pairs.identity_of(variable): i for i,", "self.places = {path_of(variable): i for i,",
        processor("test_two_variables_of_one_name_are_two"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "an unknown shape is let in", PROCESSOR,
        "if not tf.TensorShape(variable.shape).is_fully_defined():", "if False:",
        processor("test_a_variable_of_unknown_shape"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "stopped variables are handed to the optimizer", PROCESSOR,
        "for place, variable in both if place not in skipped]", "for place, variable in both]",
        processor("test_stopped_variables_are_left_out_and_do_not_count"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "the given parameters are forgotten", PROCESSOR,
        "slots, old, params, keys)", "slots, old, None, keys)", processor(OWN_PARAMETERS),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "its state is trained", PROCESSOR,
        "trainable=False", "trainable=True", processor("test_its_variables_are_its_state_and_none_of_the_models"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "the model's variables are its own", PROCESSOR,
        "self._slots = _Slots(variables)\n",
        "self._slots = _Slots(variables)\n        self.of = self._slots.variables\n",
        processor("test_its_variables_are_its_state_and_none_of_the_models"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "variables are named without it", PROCESSOR,
        "with self.name_scope:", 'with tf.name_scope(""):',
        processor("test_variables_of_the_state_are_named_after_their_place"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "replicas add their states up", PROCESSOR,
        "ONLY_FIRST_REPLICA", "SUM",
        replicas("test_a_processor_gives_what_it_gives_on_the_sums_bit_by_bit[eager-trace]"),
    ),
    Mutant(
        "tensorflow.GradientProcessor", "a reference variable's dtype is no dtype", PROCESSOR,
        ".base_dtype.name", ".name",
        processor(f"{ONE_RUN}[reference variables]"),
    ),
)  # fmt: skip

SINGLE_OPS = (
    Mutant(
        "tensorflow.gradient_function", "a transformation with a state is let in", OVERRIDE,
        "    if tx.stateful:", "    if False:", override("test_a_transformation_with_a_state"),
    ),
    Mutant(
        "tensorflow.gradient_function", "an op of two inputs is let in", OVERRIDE,
        "if len(op.inputs) != len(upstream):", "if False:",
        override("test_an_op_of_two_inputs_and_one_output_is_named"),
    ),
    Mutant(
        "tensorflow.gradient_function", "an op's path is a number", OVERRIDE,
        "[op.name] if len(upstream) == 1 else", '["0"] if len(upstream) == 1 else',
        override("test_the_path_is_the_name_of_the_op"),
    ),
    Mutant(
        "tensorflow.gradient_function", "all outputs of an op have one path", OVERRIDE,
        'f"{op.name}/{i}"', "op.name", override(ONE_TREE),
    ),
    Mutant(
        "tensorflow.gradient_function", "each output of an op is transformed by itself", OVERRIDE,
        "tx.rule(view, None, Context(None, {}))[0].results()", "[tx([g])[0] for g in upstream]",
        override("test_several_outputs_in_a_function"),
    ),
    Mutant(
        "tensorflow.override_gradients", "the map is not set", OVERRIDE,
        "with graph.gradient_override_map(names):", "with contextlib.nullcontext():",
        override("test_the_override_ends_with_the_context"),
    ),
    Mutant(
        "tensorflow.override_gradients", "all types have the first one's transformation", OVERRIDE,
        "(gradient_function(tx))", "(gradient_function(next(iter(overrides.values()))))",
        override("test_several_types_at_once_with_sign_as_straight_through[function-override_gradients]"),
    ),
    Mutant(
        "tensorflow.override_gradients", "the type of an op may be anything", OVERRIDE,
        "if not isinstance(kind, str):", "if False:", override("test_a_type_that_is_no_text"),
    ),
    Mutant(
        "tensorflow.override_gradients", "eager execution ignores it without a word", OVERRIDE,
        "if tf.executing_eagerly():", "if False:",
        override("test_eager_execution_is_refused_and_told_of_on_backward"),
    ),
    Mutant(
        "tensorflow.override_gradients", "a tape around it ignores it without a word", OVERRIDE,
        "    if record.could_possibly_record() and any(", "    if False and any(",
        override("test_a_tape_outside_of_the_context_in_one_function_is_refused"),
    ),
    Mutant(
        "tensorflow.override_gradients", "a tape within it ignores it without a word", OVERRIDE,
        "if record.could_possibly_record() and not self.recording:", "if False:",
        override("test_a_tape_inside_of_the_context_is_refused"),
    ),
    Mutant(
        "tensorflow.override_gradients", "a tape that watches nothing of it is refused", OVERRIDE,
        "op.type in names and record.should_record_backprop(list(op.inputs)) for op", "op.type in names for op",
        override("test_a_tape_that_does_not_watch_what_goes_through_is_let_be"),
    ),
    Mutant(
        "tensorflow.override_gradients", "a tape of other ops is refused", OVERRIDE,
        "op.type in names and record.should_record_backprop(", "record.should_record_backprop(",
        override("test_a_tape_of_other_ops_is_let_be"),
    ),
    Mutant(
        "tensorflow.override_gradients", "a tape of what came before is refused", OVERRIDE,
        "graph.get_operations()[before:]", "graph.get_operations()", override("test_a_tape_of_other_ops_is_let_be"),
    ),
)  # fmt: skip

IN_KERAS = (
    Mutant(
        "keras.wrap", "a loss scale starts anew", WRAP,
        "            initial_scale=optimizer.initial_scale,\n", "",
        keras("test_with_a_loss_scale_optimizer_the_chain_sees_unscaled_gradients"),
    ),
    Mutant(
        "keras.wrap", "a loss scale grows at another pace", WRAP,
        "            dynamic_growth_steps=optimizer.dynamic_growth_steps,\n", "",
        keras(f"{IDENTITY}[LossScaleOptimizer]"),
    ),
    Mutant(
        "keras.wrap", "a built optimizer's values are not copied", WRAP,
        "        new.assign(old)", "        pass", keras("test_an_optimizer_that_is_built_goes_on"),
    ),
    Mutant(
        "keras.wrap", "a built loss scale is not built", WRAP,
        "        if optimizer.built:", "        if False:", keras("test_a_built_loss_scale_optimizer_keeps_its_scale"),
    ),
    Mutant(
        "keras.wrap", "an optimizer may be wrapped twice", WRAP,
        "if isinstance(optimizer, Transforming):", "if False:", keras("test_wrapped_already"),
    ),
    Mutant(
        "keras.wrap", "an optimizer in a loss scale may be wrapped twice", WRAP,
        "remade(_checked(optimizer.inner_optimizer), tx)", "remade(optimizer.inner_optimizer, tx)",
        keras("test_wrapped_already"),
    ),
    Mutant(
        "keras.wrap", "an optimizer that hands gradients on is let in", WRAP,
        "if type(optimizer).apply not in (", "if False and type(optimizer).apply not in (",
        keras("test_an_optimizer_of_optimizers"),
    ),
    Mutant(
        "keras.wrap", "what is no transformation is let in", WRAP,
        'tx = as_transformation("keras.wrap", tx)', "assert as_transformation", keras("test_what_is_no_transformation"),
    ),
    Mutant(
        "keras.wrap", "the transformation comes before Keras's own clip", OPTIMIZER,
        "self._gradxform.transformed(super()._clip_gradients(grads))",
        "super()._clip_gradients(self._gradxform.transformed(grads))", keras("test_keras_s_own_clip_comes_first"),
    ),
    Mutant(
        "keras.wrap", "the transformation comes before unscaling", OPTIMIZER,
        "    def _clip_gradients(self: Any, grads: Any) -> Any:\n"
        "        return self._gradxform.transformed(super()._clip_gradients(grads))",
        "    def _filter_empty_gradients(self: Any, grads: Any, trainable_variables: Any) -> Any:\n"
        "        grads, made = super()._filter_empty_gradients(grads, trainable_variables)\n"
        "        self._gradxform.given = [self._get_variable_index(variable) for variable in made]\n"
        "        return self._gradxform.transformed(grads), made",
        keras("test_loss_scaling_by_a_factor_comes_first"),
    ),
    Mutant(
        "keras.wrap", "the transformation sees each of the gradients that are accumulated", OPTIMIZER,
        "        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]\n\n"
        "    def _clip_gradients(self: Any, grads: Any) -> Any:\n"
        "        return self._gradxform.transformed(super()._clip_gradients(grads))",
        "        grads = self._gradxform.transformed(grads)\n"
        "        super()._backend_apply_gradients(grads, trainable_variables)\n\n"
        "    def _clip_gradients(self: Any, grads: Any) -> Any:\n"
        "        return super()._clip_gradients(grads)",
        keras("test_the_chain_sees_the_mean_of_accumulated_gradients"),
    ),
    Mutant(
        "keras.wrap", "gradients are those of the first variables", OPTIMIZER,
        "[self._get_variable_index(variable) for variable in trainable_variables]",
        "list(range(len(trainable_variables)))", keras("test_missing_gradients"),
    ),
    Mutant(
        "keras.wrap", "weight decay moves frozen variables", OPTIMIZER,
        "moving, decay = self._moving(variables),", "moving, decay = list(variables),",
        keras(f"{FROZEN}[AdamW]"),
    ),
    Mutant(
        "keras.wrap", "frozen variables are stepped with zeros", OPTIMIZER,
        "moving, update = self._moving(trainable_variables), super()._backend_update_step  # type: ignore[misc]\n"
        "        grads = [gradient for gradient in grads if gradient is not None]\n",
        "moving, update = list(trainable_variables), super()._backend_update_step\n"
        "        grads = [keras.ops.zeros_like(v) if g is None else g for g, v in zip(grads, moving)]\n",
        keras(f"{FROZEN}[Ftrl]"),
    ),
    Mutant(
        "keras.wrap", "averages of frozen weights move them", OPTIMIZER,
        "for place in self._gradxform.stopped:", "for place in ():",
        keras("test_averages_of_frozen_weights_do_not_move_them"),
    ),
    Mutant(
        "keras.wrap", "sums over the replicas are added up once more", OPTIMIZER,
        "        return grads_and_vars\n", "        return super()._all_reduce_sum_gradients(grads_and_vars)\n",
        of("keras", "test_different_gradients_in_two_replicas"),
    ),
    Mutant(
        "keras.wrap", "built twice, it has its variables twice", OPTIMIZER,
        "        if not self.built:\n            super()", "        if True:\n            super()",
        keras("test_built_twice_it_has_its_variables_once"),
    ),
    Mutant(
        "keras.wrap", "the config is without the expression", OPTIMIZER,
        '"transformation": expression}', '"transformation": "identity()"}', keras(f"{CONFIG}[SGD]"),
    ),
    Mutant(
        "keras.wrap", "a config is written that no one can read", "backends/gradxform_keras/_expression.py",
        "if again != tx:", "if False:", keras("test_a_function_cannot_be_saved"),
    ),
    Mutant(
        "keras.wrap", "a config is without the optimizer's options", OPTIMIZER,
        'object.__setattr__(shell, "get_config", super().get_config)',
        'object.__setattr__(shell, "get_config", lambda: {})', keras("test_a_changed_learning_rate_is_in_the_config"),
    ),
    Mutant(
        "keras.wrap", "a learning rate that is a function is written down", OPTIMIZER,
        "if not callable(rate) or isinstance(", "if True or isinstance(", keras(f"{IDENTITY}[SGD, a function]"),
    ),
    Mutant(
        "keras.wrap", "options that a config forgets are lost", OPTIMIZER,
        "if not _is_keras_s(name, value) and", "if False and",
        keras("test_an_option_that_is_not_in_the_configuration"),
    ),
    Mutant(
        "keras.wrap", "a class that cannot be made anew is not named", OPTIMIZER,
        "except TypeError as error:", "except KeyError as error:",
        keras("test_a_class_whose_config_does_not_give_its_options"),
    ),
    Mutant(
        "keras.wrap", "a built optimizer is made anew without its values", OPTIMIZER,
        "    if optimizer.built:\n", "    if False:\n", keras("test_an_optimizer_that_is_built_goes_on"),
    ),
    Mutant(
        "keras.wrap", "the state is not kept", HELD,
        "variable.assign(leaf)", "variable.assign(variable)", keras(f"{MOVES_ON}[trace]"),
    ),
    Mutant(
        "keras.wrap", "a step that is skipped is applied", HELD,
        "        if self.due is True:\n            update()\n", "        if True:\n            update()\n",
        keras(SKIPPED),
    ),
    Mutant(
        "keras.wrap", "a step that is skipped counts", OPTIMIZER,
        "self._gradxform.take_back(self._iterations)", "pass", keras(SKIPPED),
    ),
    Mutant(
        "keras.wrap", "the first state is zeros", HELD,
        "keras.ops.convert_to_tensor(leaf, dtype)", "keras.ops.zeros(shape, dtype)",
        keras("test_the_first_state_is_that_of_init"),
    ),
    Mutant(
        "keras.wrap", "frozen variables are given zeros", HELD,
        "None if place in self.stopped else results[place] for", "results[place] for", keras(f"{FROZEN}[Adam, plain]"),
    ),
    Mutant(
        "keras.wrap", "all are stopped, and no one is told", HELD,
        "if self.stopped.issuperset(self._order):", "if False:", keras("test_all_stopped"),
    ),
    Mutant(
        "keras.wrap", "paths are numbers", HELD,
        "lambda: self._paths)", "lambda: list(map(str, range(len(self._paths)))))",
        keras("test_the_paths_are_those_of_the_variables"),
    ),
    Mutant(
        "keras.wrap", "there are no parameters", HELD,
        "Context(params, {})", "Context(None, {})",
        keras("test_parameters_are_there_for_those_that_need_them"),
    ),
    Mutant(
        "keras.wrap", "gradients go to the first places", HELD,
        "slots = [gradients.get(place) for place in self._order]",
        "slots = [*gradients.values(), *[None] * len(self._order)][: len(self._order)]",
        keras("test_missing_gradients"),
    ),
    Mutant(
        "keras.wrap", "the transformation sees a replica's own gradients", HELD,
        "slots, self._replicas = _summed(self.backend, slots)", "assert _summed",
        of("keras", "test_different_gradients_in_two_replicas"),
    ),
    Mutant(
        "keras.wrap", "replicas add their states up", HELD,
        'aggregation="only_first_replica"', 'aggregation="sum"',
        of("keras", "test_different_gradients_in_two_replicas"),
    ),
)  # fmt: skip

ADAPTERS = ON_BACKWARD + LAYERS + NUMBERS + STATES + ON_PAIRS + THE_PROCESSOR + SINGLE_OPS + IN_KERAS + AS_MODULES
