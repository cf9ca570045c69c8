"""Families of environments: toys, mathematics, code, tools, long documents, retrieval."""
