"""How the embedded models were made."""
