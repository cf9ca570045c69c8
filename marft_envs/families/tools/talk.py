"""What is said to the user, and whether talk with a user-agent gets anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass
class UserTalk:
    """The words of an episode that concern the user.

    Without a user-agent, the user hears what stands in the replies that end its turns. A user-agent hears every word
    that the others say to it; its talk with them brings something as long as neither repeats itself.
    """

    user: str = ""
    """The user-agent; "" where there is none."""
    told: list[str] = field(default_factory=list)
    """What the user was told, in order; without thoughts and calls."""
    replies: set[tuple[str, str]] = field(default_factory=set)
    """Agent and words, case and marks apart, of this user turn."""

    def hear(self, agent: str, spoken: str, calls: bool, over: bool) -> bool:
        """Notes a reply; returns whether it said something new to, or as, the user-agent.

        Args:
            agent: Who says it.
            spoken: The words of the reply.
            calls: It holds calls; beside these, nothing is said to a user-agent.
            over: The user's turn is over with it.
        """
        if not (over if not self.user else not calls):
            return False
        if agent != self.user and spoken:
            self.told.append(spoken)
        plain = (agent, " ".join(re.findall(r"\w+", spoken.casefold())))
        new = bool(self.user and plain[1]) and plain not in self.replies
        self.replies.add(plain)
        return new
