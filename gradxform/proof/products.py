"""The error budget of iterated products of matrices, whose summands frameworks add in different orders."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.proof.reference_matrices import polynomials


def budget(coefficients: Any, steps: int) -> float:
    """Return the error bound of the singular values, in units of the rounding error of one operation.

    The polynomials are taken as evaluated one singular value at a time: the first matrix is rounded once, each step to
    the sum of its terms' sizes, and later steps multiply an error by at most their slope. Both are the largest over all
    singular values of a matrix of norm one.

    References:
        Higham, Accuracy and stability of numerical algorithms, 2002, section 5.1.
    """
    x = np.linspace(0.0, 1.0, 10_001)
    terms, slopes = [1.0], []
    for row in polynomials(coefficients, steps):
        a, b, c = map(float, row)
        terms.append(float(np.max(abs(a) * x + abs(b) * x**3 + abs(c) * x**5)))
        slopes.append(a + 3 * b * x**2 + 5 * c * x**4)
        x = np.abs(a * x + b * x**3 + c * x**5)
    steepest = (float(np.max(np.abs(np.prod(slopes[done:], axis=0)))) for done in range(steps + 1))
    return sum(term * slope for term, slope in zip(terms, steepest, strict=True))
