"""Tasks of reasoning-gym for one agent and for a team: demonstrations of their working, and the package's own scores.

    python examples/reasoning/tasks.py rows chain_sum rows/chain_sum.jsonl --questions 128
    python examples/reasoning/tasks.py rows chain_sum rows/chain_sum-team.jsonl --questions 128 --team
    python examples/reasoning/tasks.py score evals/NAME/episodes/*.jsonl

``ALONE`` and ``TEAM`` are what ``--env-kwargs`` takes beside the settings. In a team the reasoner works and the actor
answers.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import marft_envs
from marft_envs.families.math.grader import extract_boxed

TASKS = {
    "chain_sum": {"min_terms": 3, "max_terms": 4, "min_digits": 1, "max_digits": 1},
    "family_relationships": {},
    "leg_counting": {"min_animals": 2, "max_animals": 3, "max_instances": 5},
}
"""Data set -> its settings. A question is created from its number alone, so every question can be asked again."""
ALONE = {"profiles": "Work in short steps. Then give the answer in \\boxed{}."}
TEAM = {
    "roles": ["reasoner", "actor"],
    "profiles": {"reasoner": "Work in short steps.", "actor": "Read the steps. Give the answer in \\boxed{}."},
}
FIRST = 1 << 31
"""Number of the first demonstrated question: those that are played have smaller ones."""


def sums(terms):
    """Returns the partial sums.

    >>> sums([98, -93, 77])
    '98-93=5, 5+77=82'
    """
    steps, total = [], terms[0]
    for term in terms[1:]:
        steps.append(f"{total}{term:+d}={total + term}")
        total += term
    return ", ".join(steps)


def path(story, start, end):
    """Returns how two people of a family are related, person by person.

    >>> path("Ann is married to Bob. They have a child called Cy. Cy is married to Di.", "Bob", "Di")
    "Bob's child Cy's spouse Di"
    """
    near, couple = {}, ()
    for sentence in story.split(". "):
        if pair := re.match(r"(\w+) is married to (\w+)", sentence):
            couple = pair.groups()
            links = [(*couple, "spouse"), (*reversed(couple), "spouse")]
        else:
            children = re.findall(r"[A-Z]\w*", sentence.partition("called")[2])
            links = [link for p in couple for c in children for link in ((p, c, "child"), (c, p, "parent"))]
        for one, other, word in links:
            near.setdefault(one, {})[other] = word
    ways = {start: start}
    for person in (queue := [start]):
        for other, word in near[person].items():
            if other not in ways:
                ways[other] = f"{ways[person]}'s {word} {other}"
                queue.append(other)
    return ways[end]


def working(name, question):
    """Returns how a question of a data set is worked out, from what the package says of it."""
    about = question["metadata"]
    if name == "chain_sum":
        return sums([int(term.replace(" ", "")) for term in re.findall(r"[-+]? ?\d+", about["expression"])])
    if name == "family_relationships":
        return path(question["question"].partition("\n")[0], about["person1"], about["person2"])
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    legs = [(n, ANIMALS[animal]) for animal, n in about["animals"].items()]
    return ", ".join(f"{n}*{each}={n * each}" for n, each in legs) + "; " + sums([n * each for n, each in legs])


def created(name, number):
    """Returns the data set that holds one question."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=1, seed=number, **TASKS[name])


def environment(name, *, team):
    """Returns the environment of one agent, or of a team."""
    return marft_envs.make(f"reasoning_gym:{name}", settings=TASKS[name], **(TEAM if team else ALONE))


def rows(name, questions, *, team):
    """Yields demonstrations: of each turn the prompt, the reply to imitate, and who replies."""
    env = environment(name, team=team)
    for number in range(FIRST, FIRST + questions):
        question = created(name, number)[0]
        steps, answer = working(name, question), f"\\boxed{{{question['answer']}}}"
        env.reset(options={"task_id": str(number)})
        while not env.done:
            agent = env.agent_selection
            said = (steps if agent.startswith("reasoner") else answer) if team else f"{steps}. {answer}"
            yield {"messages": env.messages(agent), "action": said, "agent": agent}
            env.step(said)
    env.close()


def scores(episodes):
    """Yields (score by the package's own scorer, success as recorded) of recorded episodes."""
    for episode in episodes:
        name = episode["env_id"].partition(":")[2]
        data, text = created(name, int(episode["task_id"])), episode["turns"][-1]["text"]
        answer = extract_boxed(text)
        yield data.score_answer(text if answer is None else answer, data[0]), episode["success"]


def main():
    """Writes rows, or prints scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    write = verbs.add_parser("rows")
    write.add_argument("task", choices=TASKS)
    write.add_argument("file", type=Path)
    write.add_argument("--questions", type=int, default=128)
    write.add_argument("--team", action="store_true")
    read = verbs.add_parser("score")
    read.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.verb == "rows":
        found = list(rows(options.task, options.questions, team=options.team))
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text("".join(f"{json.dumps(row)}\n" for row in found), encoding="utf-8")
        print(f"{len(found)} rows: {options.file}")
        return
    for file in options.files:
        found = list(scores(map(json.loads, file.read_text(encoding="utf-8").splitlines())))
        theirs, ours = (sum(x == 1 for x in column) / len(found) for column in zip(*found, strict=True))
        print(f"{file}: {theirs:.3f} by the package's scorer, {ours:.3f} as recorded, n = {len(found)}")


if __name__ == "__main__":
    main()
