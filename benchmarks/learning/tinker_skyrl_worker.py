"""SkyRL's Tinker server, run by an interpreter that has ``skyrl`` and nothing of this project: PORT, settings (JSON).

``python -m skyrl.tinker.api`` of SkyRL 0.4.0 starts its engine by ``uv run``, and wants to be started so, too, from a
checkout of SkyRL. Here this very interpreter starts the engine; all else is SkyRL's.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from skyrl.tinker import api
from skyrl.tinker.config import EngineConfig, config_to_argv


def engine(_parent: list[str], config: Any) -> list[str]:
    """Returns the command of the engine."""
    return [sys.executable, "-m", "skyrl.tinker.engine", *config_to_argv(config)]


def main(port: str, settings: str) -> None:
    """Serves on this machine alone, until it is ended."""
    api._build_uv_run_cmd_engine = engine
    api.app.state.engine_config = EngineConfig.model_validate_json(settings)
    uvicorn.run(api.app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
