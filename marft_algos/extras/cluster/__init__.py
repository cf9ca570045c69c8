"""Rollouts on a Ray cluster: workers that play chunks, and who replaces those that die. Nothing else imports ray."""
