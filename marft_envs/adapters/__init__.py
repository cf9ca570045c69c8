"""Adapters: ``inward``, environments of others under these trainers; ``outward``, these under the trainers of others.

Nothing is imported here; each module imports what it adapts when it is used.
"""

from marft_envs.moved import moved

_INWARD = "aec codecs compliance foreign game gem gym_text isolation load parallel reasoning_gym textarena"
_OUTWARD = (
    "agent_lightning benchmarl gymnasium_env learner_row numeric openenv parallel_play rllib torchrl trl verifiers verl"
)
moved(
    {f"{__name__}.{name}": f"{__name__}.inward.{name}" for name in _INWARD.split()}
    | {f"{__name__}.{name}": f"{__name__}.outward.{name}" for name in _OUTWARD.split()}
)
