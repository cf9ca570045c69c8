"""What a run leaves on disk, and what is shown of it."""

from marft_envs.moved import inside

__getattr__ = inside(__name__, {"EvalRecord": "folder", "RunFolder": "folder"})
