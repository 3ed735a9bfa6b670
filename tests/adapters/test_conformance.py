"""Every adapter passes every case of conformance.py; keras_cases.py and test_keras.py run Keras's."""

from __future__ import annotations

from pathlib import Path

import conformance
import pytest
from drivers import DRIVERS
from support import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
HERE = [driver for driver in DRIVERS if driver.framework in FRAMEWORKS]


@pytest.mark.parametrize(("driver", "case"), conformance.pairs(HERE))
def test_an_adapter(driver: str, case: str, tmp_path: Path) -> None:
    conformance.check(HERE, driver, case, tmp_path)
