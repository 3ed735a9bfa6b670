"""The text of the `python tests/benchmarks/write_parity.py` page around its tables."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Iterator

from parity_page.groups import KINDS, Sizes

from gradxform.cli.console import versions
from gradxform.proof.extended import bits
from gradxform.proof.gradients import Values, hard


def beginning(verdict: str) -> Iterator[str]:
    """Yield the budgets and the verdict."""
    yield (
        "The largest error of every transform in every framework, mode and dtype, in ULP (units in the last place) "
        "of the gradient's dtype. Real and imaginary parts count separately. The reference, "
        f"`gradxform.proof.reference`, computes each formula in extended precision ({bits()} bits here) and rounds "
        "once."
    )
    yield "\n".join(
        (
            "| budget | for |",
            "|---|---|",
            "| 2 ULP | rescaled float32 and complex64 |",
            "| 1 ULP | float16 and bfloat16 |",
            "| 16 ULP | float64 and complex128; p-norms with p other than 1, 2 and infinity |",
            "| 4 ULP of the largest term (float64: 16) | sums of terms: averages, decay, noise, means over axes |",
            "| see below (*) | `orthogonalize`: products of matrices |",
            "| 0 ULP | value clips, powers of two, `identity`, `stop`, `freeze`, gradients within their limit |",
        )
    )
    yield (
        "Frameworks add the summands of a matrix product in different orders, so results of `orthogonalize` agree to "
        "rounding of products, not to the bit. Their unit (*) is the norm of the error, relative to the norm, times "
        "2^24 (float32), 2^53 (float64), 2^11 (float16) or 2^8 (bfloat16). The budget is the error bound of the "
        "polynomials of one singular value, `gradxform.proof.products`: each step rounds to the size of its terms, and "
        "later steps multiply that by at most their slope."
    )
    yield verdict


def provenance(command: str, devices: str) -> str:
    """Return one line with command, date, versions and, if asked for, devices."""
    ran_on = f" Ran on: {devices}." if devices else ""
    return f"Written by `{command}` on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} with {_versions()}.{ran_on}"


def _versions() -> str:
    """Return the versions and the processor's architecture, without host or path."""
    found = (f"{name} {version}" for name, version in versions().items())
    return f"{', '.join(found)}, {platform.machine()}"


def trees_measured(sizes: Sizes) -> Iterator[str]:
    """Describe the gradients."""
    yield "## Gradients"
    yield (
        "Every transform gets small nested trees in each of its dtypes: matrices, a 0-d gradient and None, or only "
        "matrices if axes are given. Stateful transforms get five steps of normal numbers, seven of edge cases and "
        f"one of each other kind. Stateless ones also get one float32 leaf of {math.prod(sizes.large):,} elements. "
        "`clip_norm(1.0)`, `clip_global_norm(1.0)` and the chain that ends in `scale(-0.1)` also get trees of "
        f"{sizes.many} leaves and of mixed dtypes. `clip_global_norm(1.0)` also gets one leaf of "
        f"{math.prod(sizes.embedding):,} elements (GPT-2's token embedding has 38,597,376). The small trees contain:"
    )
    random = (f"- {name}: {words}" for name, (words, _) in KINDS.items())
    yield "\n".join((*random, *(f"- {name}: {_said(values)}" for name, values in hard("float32").items())))


def _said(values: Values) -> str:
    given = [", ".join(f"{value:g}" for value in leaf) for leaf in values if leaf]
    return f"{'; in another leaf '.join(given)}; the rest zero" if given else "zeros only"
