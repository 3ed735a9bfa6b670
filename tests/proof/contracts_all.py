"""All contracts."""

from __future__ import annotations

from contracts import Contract
from contracts_adapters import ADAPTERS
from contracts_core import COMPILED, FORMULAS, FUNCTIONS, STATES, VIEW
from contracts_kernels import KERNELS
from contracts_transforms import TRANSFORMS

CONTRACTS: tuple[Contract, ...] = (
    *TRANSFORMS, *KERNELS, *VIEW, *FORMULAS, *STATES, *FUNCTIONS, *ADAPTERS, *COMPILED,
)  # fmt: skip
