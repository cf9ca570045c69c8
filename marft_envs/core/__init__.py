"""The Flex-POMDP: ``FlexEnv``, its dependency function D, the schedule of turns, records, rewards, teams, vectors."""
