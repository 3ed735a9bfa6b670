"""What people who know PyTorch type first: it works, or the error says what to write."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_ulp, run_advice

import gradxform as gx

torch = pytest.importorskip("torch")

TX = gx.clip_global_norm(1.0)


def model() -> Any:
    made = torch.nn.Linear(2, 1)
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    return made


ATTACH, APPLY, GRADIENTS = "write gx.torch.attach(optimizer, tx)", "gx.torch.apply_(tx, model)", "p.grad for name, p in"
WRONG = [
    ("gx.torch.apply_(model, tx)", APPLY),
    ("gx.torch.apply_(model.named_parameters(), tx)", APPLY),
    ("gx.torch.apply_(tx, optimizer)", ATTACH),
    ("gx.torch.apply_(tx, optimizer.param_groups)", ATTACH),
    ("gx.torch.apply_(tx, [p.grad for p in model.parameters()])", "no tensor has a .grad"),
    ("gx.torch.apply_(tx, {n: p.grad for n, p in model.named_parameters()})", "gradients = tx(gradients)"),
    ("gx.torch.apply_(tx, model.state_dict())", APPLY),
    ("gx.torch.apply_(tx, model, True)", "write return_norm=True by name"),
    ("gx.torch.apply_(gx.trace(0.9), model, False)", "write return_norm=False by name"),
    ("gx.torch.apply_(tx, model.parameters)", "; call it"),
    ("gx.torch.apply_(gx.trace(0.9), model)", "state = gx.torch.apply_(tx, parameters, state)"),
    *((f"gx.torch.apply_(tx, {given})", f"got {given}") for given in (None, 3, 1.5)),
    *((f"gx.torch.apply_(tx, [model.bias, {i}])", "item 1 is neither") for i in (3, None, "('w', 3)", "['w', None]")),
    ("gx.torch.init(model, tx)", "gx.torch.init(tx, model)"),
    ("gx.torch.attach(tx, optimizer)", ATTACH),
    ("gx.torch.attach(model, tx)", APPLY),
    ("gx.torch.attach(None, tx)", "torch.optim optimizer"),
    ("gx.torch.attach(torch.optim.SGD, tx)", "make an instance of it first"),
    ("gx.torch.attach(scheduler, tx)", "StepLR; hand in its optimizer"),
    ("gx.torch.attach(optimizer, gx.clip_norm)", "call it first"),
    ("gx.torch.GradientReversal(tx)", "scale must be a real number"),
    ("gx.to_numpy(gx.torch.attach(optimizer, tx))", "write handle.state"),
    ("gx.from_numpy({}, like=gx.torch.attach(optimizer, tx))", "write handle.state"),
    ("gx.metrics(scheduler)", "pass its optimizer"),
    ("gx.chain(tx, optimizer)", ATTACH),
    ("gx.chain(tx, torch.optim.AdamW)", ATTACH),
    ("gx.masked(model, '**')", "a PyTorch model"),
    ("gx.freeze([model])", "list(module.parameters())"),
    ("gx.freeze(model)", "list(module.parameters())"),
    ("gx.freeze(model.parameters())", "write list(...)"),
    ("gx.freeze(['bias', ('weight', model.weight)])", "a list of these, or a tree of bools, got tuple"),
    ("tx(model)", GRADIENTS),
    ("tx({'body': model})", "'body' is a PyTorch model"),
    ("tx([torch.ones(2), model])", "'1' is a PyTorch model"),
    ("gx.nonfinite_paths(model)", GRADIENTS),
    ("gx.global_norm(model.parameters())", GRADIENTS),
    ("gx.global_norm([(p.grad, p) for p in model.parameters()])", "[gradient for gradient, _ in pairs]"),
    *(
        (f"{call}({given})", GRADIENTS)
        for call in ("tx", "gx.global_norm", "gx.norms", "gx.nonfinite_paths")
        for given in ("list(model.parameters())", "dict(model.named_parameters())", "{'head': [None, model.weight]}")
    ),
    ("gx.pcgrad([list(model.parameters()), list(model.parameters())], seed=0)", GRADIENTS),
    ("gx.per_example_clip_norm(dict(model.named_parameters()), 1.0)", GRADIENTS),
    ("gx.clip_global_norm(model.parameters(), max_norm=1.0, norm_type=2.0)", APPLY),
    ("gx.clip_norm(model)", APPLY),
    ("gx.clip_norm([p.grad for p in model.parameters()], 1.0)", "tx = gx.clip_norm(...), then tx(gradients)"),
    ("gx.scale(scheduler)", "a schedule is a function of the step"),
    ("gx.scale(torch.optim.lr_scheduler.StepLR)", "make an instance of it first"),
    ("gx.scale(optimizer)", ATTACH),
]
VALUES = [
    *((f"gx.torch.attach(optimizer, tx, on={on!r})", "on must be") for on in ("update", None, True, ["updates"])),
    ("gx.torch.attach(torch.optim.SGD(model.parameters()), gx.freeze('body'))", "attach(optimizer, tx, names=model)"),
    ("gx.torch.apply_(gx.freeze('weight'), model.parameters())", APPLY),
    ("tx([(p.grad, p) for p in model.parameters()])", "gx.torch.apply_(tx, parameters)"),
    *((f"gx.torch.{call}(tx, {none})", "used up") for call in ("apply_", "init") for none in ("[]", "iter([])", "{}")),
    ("gx.trace(0.9).update([np.ones(2)], gx.trace(0.9).init([torch.ones(2)]))", "gx.from_numpy"),
]


@pytest.mark.parametrize(("typed", "words"), [*WRONG, *VALUES], ids=lambda value: value[:60])
def test_a_wrong_call_says_what_to_write(typed: str, words: str) -> None:
    def names() -> dict[str, Any]:
        trained, gradients = model(), [torch.ones(2)]
        own = torch.optim.SGD(trained.named_parameters(), lr=0.1)
        found = {"gx": gx, "torch": torch, "tx": TX, "model": trained, "module": trained, "optimizer": own, "state": ()}
        found |= {"parameters": list(trained.parameters()), "params": (), "p": trained.weight, "gradients": gradients}
        found |= {"loss": trained.weight.sum(), "pairs": [(gradients[0], trained.weight)]}
        return found | {"scheduler": torch.optim.lr_scheduler.StepLR(own, 1)}

    with pytest.raises(ValueError if (typed, words) in VALUES else TypeError, match=re.escape(words)) as caught:
        eval(typed, names() | {"np": np})
    run_advice(str(caught.value), names)


class Tied(torch.nn.Module):  # type: ignore[misc]
    """A language model, whose head is its embedding, and whose encoder may be frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 2)
        self.lm_head = torch.nn.Linear(2, 3, bias=False)
        self.lm_head.weight = self.embed.weight


TIED, HINT = "'lm_head/weight' is tied to 'embed/weight'", "not trainable"
FROZEN = "'encoder/weight' does not require gradients and is not in the optimizer"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("gx.torch.apply_(gx.freeze('lm_head/**'), tied)", TIED),
        ("gx.torch.init(gx.partition({'lm_head.weight': gx.trace(0.9)}), tied)", TIED),
        ("gx.torch.attach(sgd(tied.parameters()), gx.masked(gx.stop(), '**/lm_head/*'), names=tied)", TIED),
        ("gx.torch.attach(sgd(tied.named_parameters()), gx.freeze(re.compile('lm_head')), names=tied)", TIED),
        ("gx.torch.apply_(gx.freeze('lm_head/**'), tied.named_parameters())", HINT),
        ("gx.torch.attach(sgd(tied.embed.parameters()), gx.partition({'encoder/*': gx.stop()}), names=tied)", FROZEN),
        ("gx.torch.attach(sgd(tied.embed.parameters()), gx.freeze('head/**'), names=tied)", HINT),
    ],
)
def test_a_name_that_is_absent_says_why(typed: str, words: str) -> None:
    tied = Tied()
    tied.encoder.requires_grad_(False)
    for parameter in tied.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match=f"matches no path; .*{re.escape(words)}"):
        eval(typed, {"gx": gx, "re": re, "tied": tied, "sgd": lambda given: torch.optim.SGD(given, lr=0.1)})
    assert gx.torch.init(gx.masked(gx.trace(0.5), "embed/**"), tied).trace.keys() >= {"embed/weight"}


def test_tensors_whose_gradient_was_put_there() -> None:
    """Plain tensors, as in functional code: some of them may have none."""
    w, b = torch.zeros(2), torch.zeros(1)
    w.grad = torch.tensor([3.0, 4.0])
    gx.torch.apply_(TX, [w, b])
    assert_ulp(w.grad, [0.6, 0.8])
    frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    assert gx.torch.apply_(TX, [frozen]) is None
    assert gx.torch.apply_(TX, [torch.zeros(2, requires_grad=True)]) is None


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
    with pytest.raises(ValueError, match="copy the transformation together with the model"):
        gx.torch.apply_(copied(tx), made)


def test_a_pattern_for_a_group_that_is_added_later() -> None:
    made = model()
    late = torch.optim.SGD([("weight", made.weight)], lr=0.1)
    with pytest.raises(ValueError, match="'bias' matches no path"):
        gx.torch.attach(late, gx.freeze("bias"))
    late.add_param_group({"params": [("bias", made.bias)]})
    before = made.bias.clone()
    gx.torch.attach(late, gx.freeze("bias"))
    made.weight.grad, made.bias.grad = torch.ones(1, 2), torch.ones(1)
    late.step()
    assert torch.equal(made.bias, before)
