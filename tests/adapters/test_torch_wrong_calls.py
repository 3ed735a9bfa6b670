"""What people who know PyTorch type first: it works, or one sentence says what to write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support import assert_ulp, one_sentence

import gradxform as gx

torch = pytest.importorskip("torch")

TX = gx.clip_global_norm(1.0)


def model() -> Any:
    made = torch.nn.Linear(2, 1)
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    return made


def optimizer() -> Any:
    return torch.optim.SGD(model().named_parameters(), lr=0.1)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: gx.torch.apply_(TX, [p.grad for p in model().parameters()]), "no tensor has a .grad, so these are no par"),
    (lambda: gx.torch.apply_(TX, {n: p.grad for n, p in model().named_parameters()}), "gradients = tx(gradients)"),
    (lambda: gx.torch.apply_(TX, model().state_dict()), "write gx.torch.apply_(tx, model)"),
    (lambda: gx.torch.apply_(TX, model(), True), "the state is True, a bool; write return_norm=True by name"),
    (lambda: gx.torch.apply_(gx.trace(0.9), model(), False), "write return_norm=False by name"),
    (lambda: gx.torch.apply_(TX, model().parameters), "Module.parameters", "; call it"),
    (lambda: gx.torch.apply_(TX, optimizer().param_groups), "write gx.torch.attach(optimizer, tx)"),
    (lambda: gx.torch.apply_(TX, optimizer()), "write gx.torch.attach(optimizer, tx)"),
    (lambda: gx.torch.attach(TX, optimizer()), "write gx.torch.attach(optimizer, tx)"),
    (lambda: gx.torch.attach(model(), TX), "expected a torch.optim optimizer, got Linear"),
    (lambda: gx.torch.attach(torch.optim.lr_scheduler.StepLR(optimizer(), 1), TX), "StepLR; hand in its optimizer"),
    (lambda: gx.torch.GradientReversal(TX), "GradientReversal: scale must be a real number"),
    (lambda: gx.to_numpy(gx.torch.attach(optimizer(), TX)), "the handle of gx.torch.attach", "write handle.state"),
    (lambda: gx.from_numpy({}, like=gx.torch.attach(optimizer(), TX)), "write handle.state"),
    (lambda: gx.global_norm([(p.grad, p) for p in model().parameters()]), "write [gradient for gradient, _ in pairs]"),
    (lambda: gx.freeze([model()]), "where is a Linear; write its variables, list(module.parameters()), or a pattern"),
    (lambda: gx.freeze(["bias", ("weight", model().weight)]), "a list as where holds patterns, functions and var"),
    (lambda: gx.freeze(model().named_parameters()), "can be read once; write list(...) of it"),
]


@pytest.mark.parametrize(("typed", "words"), [(typed, words) for typed, *words in WRONG], ids=range(len(WRONG)))
def test_one_sentence_says_what_to_write(typed: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        typed()
    one_sentence(str(caught.value), *words)


def test_parameters_in_a_dict() -> None:
    made = model()
    named = dict(made.named_parameters())
    norm = gx.torch.apply_(TX, named, return_norm=True)
    assert_ulp(norm, [3.4641016][0])
    assert_ulp(made.weight.grad, [[3**-0.5, 3**-0.5]])
    assert set(gx.torch.init(gx.trace(0.9), named).trace) == {"weight", "bias"}
    gx.torch.apply_(gx.clip_value(0.5), torch.nn.ParameterDict(named))
    assert made.bias.grad.item() == 0.5


def test_tensors_whose_gradient_was_put_there() -> None:
    """Plain tensors, as in functional code: some of them may have none."""
    w, b = torch.zeros(2), torch.zeros(1)
    w.grad = torch.tensor([3.0, 4.0])
    gx.torch.apply_(TX, [w, b])
    assert_ulp(w.grad, [0.6, 0.8])
    frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    assert gx.torch.apply_(TX, [frozen]) is None
    assert gx.torch.apply_(TX, [torch.zeros(2, requires_grad=True)]) is None
    assert gx.torch.apply_(TX, []) is None


@pytest.mark.parametrize("pairs", [lambda m: list(m.named_parameters()), lambda m: dict(m.named_parameters())])
def test_parameters_chosen_with_their_names(pairs: Callable[[Any], Any]) -> None:
    made = model()
    bias = {name: p for name, p in dict(pairs(made)).items() if name == "bias"}
    chosen = gx.freeze(type(pairs(made))(bias.items()))
    assert chosen == gx.freeze([made.bias]) and hash(chosen) == hash(gx.freeze([made.bias]))
    gx.torch.apply_(chosen, made)
    assert made.bias.grad is None and made.weight.grad is not None
    gx.torch.apply_(gx.partition({tuple(made.named_parameters()): gx.stop()}), made)
    assert made.weight.grad is None


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
def test_a_choice_of_parameters_is_copied_with_its_model(copied: Callable[[Any], Any]) -> None:
    made = model()
    tx = gx.freeze(made.bias)
    other, same = copied((made, tx))
    other.weight.grad, other.bias.grad = torch.ones(1, 2), torch.ones(1)
    gx.torch.apply_(same, other)
    assert other.bias.grad is None and other.weight.grad is not None
    with pytest.raises(ValueError) as caught:
        gx.torch.apply_(copied(tx), made)
    one_sentence(str(caught.value), "chosen by identity: copy the transformation together with the model")


def test_a_pattern_for_a_group_that_is_added_later() -> None:
    made = model()
    late = torch.optim.SGD([("weight", made.weight)], lr=0.1)
    with pytest.raises(ValueError, match="the pattern 'bias' matches no path; the paths are 'weight'") as caught:
        gx.torch.attach(late, gx.freeze("bias"))
    assert caught.value.__notes__ == [
        "To choose parameters of a group that is added later, attach after add_param_group."
    ]
    late.add_param_group({"params": [("bias", made.bias)]})
    before = made.bias.clone()
    gx.torch.attach(late, gx.freeze("bias"))
    made.weight.grad, made.bias.grad = torch.ones(1, 2), torch.ones(1)
    late.step()
    assert torch.equal(made.bias, before)


def test_what_is_no_state_of_a_handle() -> None:
    """None of these speaks of an argument that nobody has written."""
    handle = gx.torch.attach(optimizer(), gx.trace(0.9))
    for state, words in [
        (5, "expected a state, a tuple or dict of arrays, got 5"),
        (
            {"trace/w": torch.zeros(1, 2)},
            "the state lacks 'trace/bias', 'trace/weight'; there is no place for 'trace/w'",
        ),
        ({"trace": {"weight": torch.zeros(2, 2), "bias": torch.zeros(1)}}, "(2, 2), but the state needs (1, 2)"),
        (
            {"trace": {"weight": torch.zeros(1, 2) + 1j, "bias": torch.zeros(1)}},
            "complex64, but the state needs float32",
        ),
    ]:
        with pytest.raises((TypeError, ValueError)) as caught:
            handle.state = state
        assert words in str(caught.value) and "like" not in str(caught.value).replace("(state, like, rename)", "")


def test_a_scheduler_instead_of_its_optimizer() -> None:
    with pytest.raises(TypeError, match="which holds no state; pass its optimizer"):
        gx.metrics(torch.optim.lr_scheduler.StepLR(optimizer(), 1))
