"""Small tasks with known optima: ``relay-v0``, ``xor-v0``, ``route-v0``, ``signal-v0``, ``steps-v0``, ``stop-v0``.

Each module says the best score under the right D, under ``Independent``, and of a team that says nothing;
a test computes them.
"""
