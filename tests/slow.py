"""The slow tests, which only `make test-slow` runs, with reasons; docs/numbers/tests.md lists their counts.

Each key is a regular expression, searched in test ids; a key without a match is an error. The table of transforms marks
its own slow tests (tests/transforms/test_table.py).
"""

from __future__ import annotations

import re

from support import (
    CHAINS,
    EAGER,
    FAKE,
    GRAPHS,
    INDUCTOR,
    LARGE,
    MILLION,
    PAGES,
    PEERS,
    PLAIN,
    PROCESSES,
    RUNS,
    SESSION,
    TRACES,
    TRAINS,
    XLA,
)

SLOW = {
    # --- adapters
    r"test_keras\.py::.*(every_back|updates_passes|fresh_process|does_not_train|replica|left_out|model_par)": PROCESSES,
    r"keras_cases\.py::test_a_model_that_is_saved.*\[(True|False-(?!SGD))": "saves and loads models; one stays quick",
    r"keras_cases\.py::test_mixed_precision.*XLA": XLA,
    r"test_torch_sharded\.py::test_on_": "starts groups of two and four processes; one process stays quick",
    r"test_torch_across\.py::test_on_": "starts groups of two and four processes; one process stays quick",
    r"test_tensorflow_across\.py": "starts one process with two logical devices, for all of its cases together",
    r"test_tensorflow_processor\.py::.*\[(XLA|function)-(AdamW|SGD)": TRAINS,
    r"test_tensorflow_processor\.py::test_every_mode.*\[XLA-(?!chain|trace)": XLA,
    r"test_tensorflow_processor\.py::test_every_mode.*\[function-(add_noise|accum|schedule|part|.*leaf)": GRAPHS,
    r"test_tensorflow_processor\.py::test_a_session_gives.*\[(add_noise|accumulate|clip)": SESSION,
    r"test_tensorflow_distribute\.py": "starts one process with two logical devices, for all of its cases together",
    r"test_optax\.py::test_(a_transform_trains_like_optax|freeze_around_an_optimizer).*(?<!adam)\]$": TRAINS,
    r"test_optax\.py::test_an_optax_test_on_gradxform": "runs optax's own test suite on gradxform's transforms",
    r"test_torch_attach\.py::test_a_compiled_step": INDUCTOR,
    # --- backends
    r"test_jax\.py::test_derivatives_without_64_bits.*(reverse over|forward over)": XLA,
    r"test_jax\.py::test_gradients_sharded_over_four_devices": PROCESSES,
    r"test_jax\.py::test_the_numbers_do_not_depend_on_how_strict.*\[(eager|.*promotion)": XLA,
    r"test_jax_tpu\.py::test_every_transform.*\[(?!(clip_|normalize_)(global_)?norm\(1|ema)": XLA,
    r"test_jax_tpu\.py::test_derivatives.*\[0-": XLA,
    r"test_jax_tpu\.py::test_(other_dtypes.*(bfloat16|complex64)|hundreds)": XLA,
    r"test_jax_mesh\.py": PROCESSES,
    r"test_jax_across\.py::test_on_eight_devices": PROCESSES,
    r"test_jax_export\.py::test_for_a_(gpu|tpu\[bfloat16)": "lowers each once more; float32 for a TPU stays quick",
    r"test_jax_export\.py::test_layers_in_one_leaf": XLA,
    r"test_jax_meta\.py::(?!test_(updates|within|at|every)).*": XLA,
    r"test_jax_meta\.py::test_updates.*\[(?!clip_(global_)?norm\]|clip_value|scale\])": XLA,
    r"test_jax_state\.py::test_(pmap|the_transformation_itself|a_run_that_is_saved)": PROCESSES,
    r"test_mlx_backend\.py::test_the_derivative_is_one.*clip_norm-compiled": "MLX hands a fused loop to a C++ compiler",
    r"test_mlx_backend\.py::test_a_training_step\[True\]": "MLX hands each fused loop to a C++ compiler",
    r"test_tensorflow\.py::test_in_a_saved_module": "saves and loads a model; the accelerator's stays quick",
    r"test_tensorflow_graph\.py::test_[ru].*\[.*(accumulate|adaptive|centralize|chain|measure|percentile)": SESSION,
    r"test_tensorflow_graph\.py::test_[ru].*\[.*(skip|zscore)": SESSION,
    r"test_tensorflow_graph\.py::.*\[(add_decayed|clip_(rms|average)|normalize)": SESSION,
    r"test_without_float64_counts\.py::test_a_compiler_changes_no_sum": "MLX hands four fused loops to a C++ compiler",
    r"test_without_float64_counts\.py::test_launches_on_mps.*bfloat16": "counts once more, in another dtype",
    r"test_torch\.py::test_compile_cold": PROCESSES,
    r"test_torch_devices\.py::test_(few|no_copy).*bfloat16": "counts once more, in another dtype",
    r"test_torch_devices\.py::test_(few|no_copy).*\[(?!clip_global|chain\(clip_v|ema|add_noise)": FAKE,
    r"test_table_without_float64\.py::test_tensors_of_mps.*\[(?!clip_global|ema|clip_value)": FAKE,
    r"test_tensorflow_accelerator\.py::test_large_leaves.*\[(in|inf|some|one|squares u)": XLA,
    r"test_tensorflow_accelerator\.py::.*(-b?float16|\[b?float16)": "traces each graph once more, in another dtype",
    r"test_torch\.py::test_the_derivative_through": INDUCTOR,
    r"test_jax_trees\.py::.*\[(Haiku|Flax linen)": "compiles for one library more; Flax NNX and Equinox stay quick",
    # --- comparing
    r"test_faults\.py::test_(in_the_other|from_other|other_precisions|no_fault.*-[1-7]\])": RUNS,
    r"test_clean_runs\.py": "trains two networks for 70 steps each; clean pairs of small networks stay quick",
    r"test_ports\.py": TRAINS,
    r"test_compare_speed\.py": "writes and reads gigabytes",
    # --- core
    r"test_errors_people_meet\.py::test_an_import\[from gradxform import \*": PROCESSES,
    r"test_empty_choice\.py::.*torch-compiled": INDUCTOR,
    r"test_fitting\.py::test_trees_of_other_keys_in_compiled.*\[(accumulate|ema|in a chain)-tensorflow": GRAPHS,
    r"test_pending\.py::.*torch-compiled": INDUCTOR,
    r"test_pending\.py::.*jax-eager": EAGER,
    r"test_pending\.py::test_the_exact.*jax-compiled-(a bound of.*hold|several|the spread)": XLA,
    r"test_pending\.py::.*tensorflow-compiled": XLA,
    r"test_pending\.py::test_means_of_rows.*(jax|tensorflow)-compiled": XLA,
    # --- functions
    r"test_backward\.py::.*torch-compiled": INDUCTOR,
    r"test_backward\.py::test_(compiled_from_cold|a_number_that_changes)": INDUCTOR,
    r"test_conflicts\.py::test_right_numbers\[.*torch-compiled": INDUCTOR,
    r"test_conflicts\.py::test_right_numbers\[(jax-.*64|jax-compiled-b?float16|tensorflow-compiled-.*64)": XLA,
    r"test_conflicts\.py::test_(the_size|zeros_give|one_nonfinite|the_radius).*jax": EAGER,
    r"test_conflicts_devices\.py::test_on_a_mesh": PROCESSES,
    r"test_tensorflow_graph\.py::test_conflicting_gradients\[float64": SESSION,
    # --- numerics
    r"test_no_longdouble\.py::.*-tensorflow": "runs NumPy's kernels as NumPy and PyTorch do, which stay quick",
    r"test_accuracy\.py::.*torch-compiled": INDUCTOR,
    r"test_accuracy\.py::test_an_embedding": LARGE,
    r"test_accuracy\.py::test_many_small_bfloat16_leaves\[jax": XLA,
    r"test_accuracy\.py::test_a_million_elements\[.*(jax-eager|tensorflow-compiled)": MILLION,
    r"test_primitives\.py::.*torch-compiled": INDUCTOR,
    r"test_primitives\.py::test_(derivatives_of_many_leaves|double_precision_compiled)": INDUCTOR,
    r"test_primitives\.py::test_extreme_factors_compiled.*torch": INDUCTOR,
    r"test_primitives\.py::test_many_leaves(_of_few_sizes.*)?\[.*(jax|tensorflow-compiled)": XLA,
    r"test_primitives\.py::test_(unknown_ranks|a_nan_under_tensorflows_xla|large_leaves_under_tensorflows_xla)": TRACES,
    r"test_primitives\.py::test_(float64_factors_are|examples_of_any).*jax": XLA,
    # --- pages
    r"test_examples_muon\.py": TRAINS,
    r"test_docs\.py::test_a_.*\[docs/(extending|guides/[jk]|how-to/(exploding|change|move|same|train|your-own))": PAGES,
    r"test_examples(_training)?\.py::(?!test_(a_page|a_lambda|case_10s|keras_ref|the_libraries_c|torch_ref))": TRAINS,
    r"test_tests_page\.py": "collects the whole suite in a process of its own",
    r"test_migrating\.py::test_the_differences": "calls every function of other libraries on the hard cases",
    r"test_migration\.py::.*\[(Where do the numbers differ|Compile and fit)": LARGE,
    r"test_migration\.py::test_(the_sum_over_the_replicas|the_loss_falls)": TRAINS,
    # --- programs
    r"test_move_from_torch\.py::test_a_run": TRAINS,
    r"test_programs\.py::test_a_program_in_a_process": PROCESSES,
    r"test_programs\.py::.*\[torch_compile": INDUCTOR,
    r"test_programs\.py::test_a_program\[(keras_fit|port_torch|huggingface)": TRAINS,
    # --- transforms
    r"test_table_plain\.py::test_right_numbers_without_fast_paths_compiled": PLAIN,
    r"test_table_plain\.py::test_right_numbers_without_fast_paths\[.*-jax\]": EAGER,
    r"test_table_plain\.py::.*fast_paths\[.*(measure|zscore|noise|percentile|accumul|skip).*-tensorflow": PLAIN,
    r"test_catalogue\.py::.*torch-compiled": INDUCTOR,
    r"test_catalogue\.py::test_(gradient_surgery|per_example_clips|noise_is_the_same)\[(jax|tensorflow-comp).*64": XLA,
    r"test_catalogue\.py::test_a_gradient_flows_through_statistics": XLA,
    r"test_catalogue\.py::test_(all_is_right|a_function_of_ones_own|an_infinity_stays_one).*jax-eager": EAGER,
    r"test_catalogue\.py::test_(an_infinity.*adaptive.*(jax|tensorflow)-compiled|all_is_right.*jax-compiled)": XLA,
    r"test_catalogue_peers\.py::.*(jitted|optax)": PEERS,
    r"test_catalogue\.py::test_(states_go_through_scan|the_order_of_surgery)": XLA,
    r"test_hard\.py::.*torch-compiled": INDUCTOR,
    r"test_hard\.py::test_(below_the_limit|the_whole_range).*(jax-eager|\[eager)": EAGER,
    r"test_hard\.py::test_huge_and_tiny.*(jax|tensorflow)-compiled": XLA,
    r"test_measuring\.py::.*torch-compiled": INDUCTOR,
    r"test_measuring\.py::test_norms_and_factors_are.*(jax|tensorflow-compiled)": XLA,
    r"test_measuring\.py::test_norms_of_any_order_and_dtype\[.*jax": XLA,
    r"test_measuring\.py::test_what_is_within_its_limit_is_not_clipped\[jax-eager": XLA,
    r"test_peers\.py::(?!.*published_formula.*clip_global_norm-\w+-jax-compiled).*(-optax|jax|compiled)": PEERS,
    r"test_peers\.py::test_derivatives\[(?!optax|torch)": PEERS,
    # --- command line, proof
    r"test_chains\.py::test_chains_compiled\[chain\((skip|scale|zero|norm|clip_rms|freeze|part|chain\(norm)": CHAINS,
    r"test_speed\.py::test_bytes_accessed.*\[[38]": XLA,
    r"test_speed\.py::test_a_run_of_the_benchmark": "times every framework",
    r"test_speed\.py::test_muon_beside.*jax": XLA,
    r"test_device\.py::test_every_array_of_a_run": PROCESSES,
    r"test_device\.py::test_(the_benchmark|parity)_says.*\[(jax|tensorflow)": XLA,
    r"test_cli\.py::test_parity_of_the_hard_cases": "compiles in four frameworks; of given gradients, it stays quick",
    r"test_testing\.py::test_parity_holds": "compiles in four frameworks, as the doctest of assert_parity does",
    r"test_testing\.py::test_a_transform_with_a_state_is_run_for_some_steps\[torch\]": INDUCTOR,
}
_PATTERNS = [(re.compile(pattern), reason) for pattern, reason in SLOW.items()]


def reason(nodeid: str) -> str | None:
    """Return why a test is slow, or None."""
    return next((reason for pattern, reason in _PATTERNS if pattern.search(nodeid)), None)


def unused(nodeids: list[str]) -> list[str]:
    """Return the patterns that no test matches."""
    return [pattern.pattern for pattern, _ in _PATTERNS if not any(pattern.search(nodeid) for nodeid in nodeids)]
