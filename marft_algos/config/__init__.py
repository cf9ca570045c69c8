"""What a run is to be: settings, presets, engines, keys, and what of a file is trusted."""

from marft_envs.moved import inside

__getattr__ = inside(__name__, {"TrainConfig": "settings", "build": "settings", "load": "settings"})
