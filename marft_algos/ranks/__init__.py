"""Several processes that train one team: what they tell each other, and sums that do not depend on their number."""
