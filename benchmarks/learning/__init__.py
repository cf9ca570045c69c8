"""What is learnt."""
