"""What people who know PyTorch type first: it works, or one sentence says what to write."""

from __future__ import annotations

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
    (lambda: gx.torch.attach(model(), TX), "an optimizer of torch.optim is wanted, got Linear"),
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
