"""``python -m`` puts the current folder first on the search path: here it loses that place, before other imports.

A file there, which may be a stranger's, must not stand in for a module of Python or of a library. Every module that can
be started lies in a package whose ``__init__`` calls this first, so none can forget it. Only what every interpreter has
loaded is imported here, so not even ``__future__``.
"""

import os
import sys


def leave_current_folder(package: str) -> None:
    """Takes the current folder from the search path if what ``-m`` is about to start is a module of this package.

    It comes last where it holds this package itself: a checkout of the project that is not installed.

    Args:
        package: Its name. A program of others that is started with ``-m`` keeps its folder.
    """
    if sys.flags.safe_path or not sys.path or sys.path[0] not in ("", os.getcwd()):
        return
    started = sys.orig_argv[
        -len(sys.argv)
    ]  # "marft_envs.records.otel", or "-mmarft_envs.records.otel" where that was one word
    if started.split(".")[0].endswith(package):
        here = os.path.abspath(sys.path.pop(0))
        if os.path.dirname(os.path.dirname(os.path.abspath(__file__))) == here:
            sys.path.append(here)
