"""``python -m marft_algos`` is ``marft``."""

from __future__ import annotations

import os
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    # `python -m` has put the current folder first: a file there must not stand in for a module of the library. Last,
    # it still holds a checkout of this project that is not installed.
    here = sys.path.pop(0)
    if os.path.dirname(os.path.dirname(os.path.abspath(__file__))) == os.path.abspath(here):
        sys.path.append(here)

from marft_algos.cli import main  # after the current folder has lost its place

sys.exit(main())
