"""What a run is to be: settings, presets, engines, keys, and what of a file is trusted."""
