"""``python -m marft_algos`` is ``marft``."""

from __future__ import annotations

import sys

from marft_algos.cli import main

sys.exit(main())
