"""Draw every picture of the gallery."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

if __name__ == "__main__":
    from gallery.frame import main

    main(*(Path(folder) for folder in sys.argv[1:]))
