"""Adapters: ``inward``, environments of others under these trainers; ``outward``, these under the trainers of others.

Nothing is imported here; each module imports what it adapts when it is used.
"""
