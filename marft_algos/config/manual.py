"""What ``marft COMMAND --help`` shows beside the options: examples to copy, and which options most people need.

One table. ``docs/cli.md`` holds its examples: ``python -m marft_algos.config.manual docs/cli.md`` writes them there.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MANY = 12
"""Options above which ``--help`` shows the common ones only."""
WHOLE = "--help-all"
WIDTH = 60
"""Column of the notes behind examples; longer examples have theirs above them."""


@dataclass(frozen=True)
class CommandEntry:
    """What is shown of one command."""

    examples: tuple[tuple[str, str], ...]
    """(words behind ``marft COMMAND``, what they are for); a shell reads the latter as a comment."""
    common: tuple[str, ...] = ()
    """Fields of the options that most people need; they come first."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Title, one word -> fields of the others. Of ``train`` they are the sections of the settings."""


@dataclass(frozen=True)
class About:
    """What help says beside the options."""

    prog: str
    """As the command is typed, with the words that usage has to show."""
    command: str
    """Its key in ``MANUAL``."""
    text: str
    """One line, and below it what else is to be said."""
    sections: tuple[str, ...] = ()
    """Of the settings, those that the short help has beside the common ones."""


_TRAIN = (
    "env env_kwargs models preset start iterations token_budget episodes_per_iteration max_new_tokens eval_episodes"
    " seed device loggers name"
)
_TABLE = """\
envs
$ # all of them
$ math-debate-v0  # its team, its D, its settings, and what the first agent sees
$ math-dual-v0 --env-kwargs levels=[2]  # the same with harder problems

play
common: agent team random episodes
problem: seed env_kwargs
$ relay-v0  # you are every agent
$ math-dual-v0 --agent reasoner_0 --team runs/NAME  # you and a trained actor
$ route-v0 --random --episodes 3 --seed 1  # watch random replies

check
$ math-trio-v0  # one that is registered
$ mypackage:desk-v0  # one of your own: module:id, or module:callable
$ math-dual-v0 --env-kwargs rounds=2  # with arguments

new
$ env ticket-desk  # writes ./ticket-desk; its environment is ticket-desk-v0
$ env ticket-desk --out desk  # into another folder

profiles
$ math-dual-v0 > profiles.json  # edit it, then: marft train --env-kwargs profiles=profiles.json
$ math-dual-v0 --shots 8 --seed 100 > profiles.json  # with eight worked examples

train
common: TRAIN
$ # a two-agent math team learns on this CPU, in minutes
$ grpo --env relay-v0 --iterations 100  # another algorithm, another task
$ --models Qwen/Qwen2.5-Coder-3B-Instruct --preset gpu-24gb --dry-run  # does it fit? loads nothing
$ --resume runs/NAME  # go on with a run

sft
common: TRAIN
$ --env math-dual-v0  # from the task's own expert
$ --env math-dual-v0 --demonstrations runs/NAME  # from a run's successes
$ --env math-dual-v0 --demonstrations episodes.jsonl --iterations 50  # from recorded episodes

dpo
common: TRAIN
$ --start runs/NAME --demonstrations runs/NAME  # from pairs of its recorded episodes
$ --start runs/NAME --demonstrations runs/NAME --beta 0.3 --lr 1e-5  # held closer to where it began

plan
$ grpo --preset default --models ./7B --gpus 8 --memory 80  # ./7B: config.json is enough
$ --preset gpu-24gb --gpus 4 --memory 24 --ranks 2  # two ranks learn, the others play

show
$ # the newest run in runs/
$ runs/NAME  # another one
$ runs/NAME --html  # and its report

view
$ # the newest run in runs/
$ runs/NAME runs/OTHER  # two runs together
$ runs/toys swapped.jsonl  # a benchmark's runs, and what marft eval has written

eval
common: untrained env env_kwargs episodes swap compare engines out
team: checkpoint models data sampled device
comparison: scenarios
hosted: samples jobs price temperature max_new_tokens seed
$ runs/NAME --episodes 1000  # against the untrained team, on the same problems
$ runs/NAME --swap reasoner --out swapped.jsonl  # what are its words worth?
$ --compare runs/BEFORE runs/NAME --scenarios frozen.json  # has any agent become worse?
$ --env math-dual-v0 --engines actor_0=smollm2-135m 'reasoner_0={kind="openai", model="gpt-5-mini"}' --samples 4\
  # a team of hosted and local models, without a run

export
common: out checkpoint merged gguf
llama: gguf_type llama_cpp
hub: push private dry_run
$ runs/NAME  # into exports/NAME: adapters, tokenizer, card
$ runs/NAME --checkpoint best --merged  # whole models, for transformers and vLLM
$ runs/NAME --gguf --gguf-type bf16 --llama-cpp ~/llama.cpp  # for llama.cpp
$ runs/NAME --push USER/TEAM --private --dry-run  # what would be sent?

bench
$ run examples/configs/bench_toys.toml --out runs/toys --plan  # what would be run?
$ run examples/configs/bench_toys.toml --out runs/toys --jobs 2  # runs it, or goes on with it
$ report runs/toys  # tables, figures and a page

bench run
$ examples/configs/bench_toys.toml --out runs/toys --plan  # what would be run?
$ examples/configs/bench_toys.toml --out runs/toys --jobs 2  # runs it, or goes on with it
$ examples/configs/bench_toys.toml --out runs/toys --stage sweep  # only choose learning rates

bench report
$ runs/toys  # tables, figures and a page
$ runs/toys --baseline reinforce  # differences to another row
$ runs/toys --check runs/toys-before  # exits with 3 if something has changed

bench pack
$ runs/toys  # toys.tar.xz, to be sent or kept
$ runs/toys --out results/toys-1.tar.xz  # by another name

bench leaderboard
$ toys.tar.xz core.tar.xz  # checks them, number by number, and prints the rankings
$ toys.tar.xz core.tar.xz --out board.html  # as a page

replay
$ runs/NAME/lost/CHUNK  # in this process, which may end as the workers did
$ runs/NAME/lost/CHUNK --debug  # with the traceback of what it says

versus
common: token_budget out env_kwargs single single_team jobs plan
training: algorithms team_algorithms lr settings single_kwargs
statistics: seeds sweep_seeds margin tolerance
$ math-dual-v0 --env-kwargs levels=[0] --token-budget 98304 --out runs/versus --plan  # its cost?
$ math-dual-v0 --env-kwargs levels=[0] --token-budget 98304 --out runs/versus --jobs 2  # the trial
$ relay-v0 --single-team solver_0 --settings preset=toy --token-budget 20000 --out runs/relay\
  # one of the team, alone
$ mine:team-v0 --single mine:solo-v0 --algorithms rft grpo --token-budget 50000 --out runs/mine\
  # environments of your own

doctor
$ # what runs here, and what to type for what does not
$ --json  # for programs

completion
$ bash  # in ~/.bashrc: source <(marft completion bash)
$ zsh  # the same in ~/.zshrc, behind compinit
$ fish > ~/.config/fish/completions/marft.fish  # fish reads it from there
"""
"""Blocks: a command, its groups of options, and examples, each with what it is for."""


def _read(table: str) -> dict[str, CommandEntry]:
    entries = {}
    for command, *lines in (block.splitlines() for block in table.replace("TRAIN", _TRAIN).split("\n\n")):
        examples = [line[1:].partition(" # ") for line in lines if line[0] == "$"]
        parts = [line.partition(": ") for line in lines if line[0] != "$"]
        groups = {title: tuple(names.split()) for title, _, names in parts}
        common = groups.pop("common", ())
        entries[command] = CommandEntry(tuple((words.strip(), note) for words, _, note in examples), common, groups)
    return entries


MANUAL = _read(_TABLE)
"""Command, with its verb -> what is shown of it."""


def asked(argv: Sequence[str]) -> bool:
    """Whether help is wanted, rather than what the words say."""
    return any(word in ("-h", "--help", WHOLE) for word in argv)


def described(text: str) -> str:
    """Writes what stands below the examples: paragraphs, wrapped; one that begins with its title stays as it is."""
    parts = [part for part in re.split(r"\n\s*\n", text.replace("``", "").strip("\n")) if part]
    titled = [part for part in parts if re.match(r"[^\n]*:\n", part)]
    plain = [_wrapped(part) for part in parts if part not in titled]
    return "".join(f"\n\n{part}" for part in ([f"Description:\n{chr(10).join(plain)}"] if plain else []) + titled)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def examples(command: str, indent: str = "  ") -> str:
    """Writes a command's examples, one or two lines each, to be copied."""
    typed = [(f"marft {command} {words}".rstrip(), note) for words, note in MANUAL[command].examples]
    width = max((len(words) for words, _ in typed if len(words) <= WIDTH), default=0)
    lines = []
    for words, note in typed:
        lines += [f"{words:<{width}}   # {note}"] if len(words) <= width else [f"# {note}", words]
    return "\n".join(indent + line for line in lines)


def page() -> str:
    """Writes every example as a block of shell for ``docs/cli.md``."""
    blocks = (examples(command, "") for command in MANUAL if command != "bench")  # whose are its verbs'
    return "```sh\n" + "\n\n".join(blocks) + "\n```"


def replaced(text: str) -> str:
    """Returns the page with the examples of now instead of those in its first block of shell."""
    return re.sub(r"```sh\n.*?\n```", lambda _: page(), text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(replaced(file.read_text(encoding="utf-8")), encoding="utf-8")
