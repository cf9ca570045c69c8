"""These environments under libraries of others: each module imports what it adapts when it is used."""
