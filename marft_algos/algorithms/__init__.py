"""One algorithm a file; what they share is in ``base``, ``settings``, ``ppo`` and ``groups``."""
