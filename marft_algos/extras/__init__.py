"""Extras: benchmarks, viewer, export, servers, Ray, Tinker and others, each by itself; no other room imports one.

Commands lead here (``config/manual.txt``), and settings (``EXTRAS`` in ``lazy.py``).
"""
