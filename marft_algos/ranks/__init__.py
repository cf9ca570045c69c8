"""Several processes that train one team: what they tell each other, and sums whose bits do not depend on their number."""
