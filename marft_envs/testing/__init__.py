"""Conformance: ``check_env`` runs PettingZoo's own tests and the invariants of a Flex environment."""
