"""``marft export``: a trained team, for other programs."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from marft_algos.config import arguments
from marft_algos.lazy import check_packages, require_training
from marft_algos.runs import paths
from marft_algos.runs.folder import UNTRAINED, RunFolder, estimate
from marft_algos.terminal import say
from marft_envs.errors import ConfigError

_FOLDERS = re.compile(r"(?<![^=:,'\"\[{( ])~?/(?!/)(?:[^/=:,'\"\]})]+/)*(?=[^/])")
"""In a word of a command: the folders of a path that begins at the root, or at home."""


@dataclass(frozen=True)
class ExportArguments:
    """Writes a trained team's policies as folders that PEFT, transformers, vLLM and llama.cpp load.

    Each has tokenizer, chat template, settings of generation and a model card. Value heads stay out.
    """

    run: Annotated[str, tyro.conf.Positional]
    """Folder or name of the run, or the folder of one of its checkpoints."""
    out: str = ""
    """Folder to write; empty: ``exports/NAME``. An export that is there already is replaced."""
    checkpoint: str = "last"
    """``last``, ``best`` or an iteration's number."""
    merged: bool = False
    """Also write adapters added to their base's weights, as models of transformers."""
    gguf: bool = False
    """Also write GGUF files, by llama.cpp's converter (merges)."""
    gguf_type: Literal["f32", "f16", "bf16", "q8_0", "auto"] = "f16"
    """Of the weights in GGUF files. f16: what llama.cpp quantises from; f32 rounds nothing."""
    llama_cpp: str = ""
    """Folder of llama.cpp; empty: its converter is on the PATH."""
    push: str = ""
    """USER/NAME: push each folder to the Hugging Face hub, as USER/NAME-FOLDER, and the whole team as USER/NAME."""
    private: bool = False
    """Make new repositories private."""
    dry_run: bool = False
    """With --push: write the export and list what would be sent; send nothing."""


def run_export(options: ExportArguments) -> None:
    """``marft export RUN …``."""
    check_packages()
    if (options.private or options.dry_run) and not options.push:
        raise ConfigError("--private and --dry-run are about --push USER/NAME. Leave them out, or say where to push.")
    if not options.gguf and (options.llama_cpp or options.gguf_type != ExportArguments.gguf_type):
        raise ConfigError("--gguf-type and --llama-cpp are about --gguf. Add it, or leave them out.")
    run, which = _chosen(options)
    config = paths.of_run(run)
    require_training()
    from marft_algos.extras.export import bases, folder, gguf, hub
    from marft_algos.models.saved import LoraSettings, check_saved
    from marft_algos.runs import checkpoint
    from marft_algos.training import environments, policies
    from marft_algos.training.resolve import resolve

    if options.push:
        hub.check(options.push, options.dry_run)
    converter = tuple(gguf.converter(options.llama_cpp)) if options.gguf else ()
    source = checkpoint.pick(run.checkpoints, which)
    with closing(environments.make_env(config, config.env_kwargs)) as env:
        spec = resolve(config, env)
        team = _team(run, config, spec, env, checkpoint.read_progress(source).iteration)
    exported = {p: spec.models[p] for p in spec.local if p in spec.trained or not config.full_finetune}
    checkpoint.check_policies(source, list(exported))
    for policy in exported:
        check_saved(
            source / "policies" / policy,
            None if config.full_finetune else LoraSettings(config.lora_r, config.lora_alpha),
        )
    found = bases.find(exported.values(), policies.model_settings(config, spec.models))
    wanted = folder.Wanted(
        {policy: found[model] for policy, model in exported.items()},
        source,
        team,
        options.merged or options.gguf,
        options.gguf_type if options.gguf else "",
        converter,
        options.push,
    )
    out = Path(options.out or f"exports/{run.root.resolve().name}")
    folder.check(wanted, out)
    if options.push:
        hub.check_names(options.push, folder.planned(wanted))
    for policy in (p for p in spec.endpoints if p not in exported):
        why = "is hosted" if spec.endpoints[policy].hosted else "is the bare base model"
        say(f"note:    {policy} {why}: there is nothing to export")
    if config.full_finetune and options.merged:
        say("note:    policies are whole models: there is nothing to merge")
    folders = folder.write(wanted, out)
    say(f"export:  {out} ({source.name} of {run.root}): {', '.join(folders)}")
    if options.push and options.dry_run:
        say(*hub.listed(out, folders, options.push), "nothing was sent", sep="\n")
    elif options.push:
        hub.push(out, folders, options.push, options.private, f"{config.env}, {source.name}")
    say(f"next:    {_next(wanted, out)}")


def _chosen(options: ExportArguments) -> tuple[RunFolder, str]:
    """Returns the run, and which of its checkpoints; a checkpoint's own folder says both."""
    path = Path(options.run)
    if not (path / "state.json").is_file():
        return RunFolder.open(options.run), options.checkpoint
    root, number = path.resolve().parent.parent, path.resolve().name.removeprefix("step_")
    if options.checkpoint != "last" or not number.isdecimal():
        raise ConfigError(f"'{options.run}' is one checkpoint. Leave out --checkpoint, or name its run: {root}")
    return RunFolder.open(root), str(int(number))


def _team(run: RunFolder, config: Any, spec: Any, env: Any, iteration: int) -> Any:
    """Gathers what the cards say of the team."""
    from marft_algos.extras.export.card import ExportedTeam

    base = env.unwrapped
    profiles = {}
    for agent in base.team:
        told = [m["content"] for m in base.messages(agent.name) if m["role"] == "system"]
        profiles[agent.name] = dataclasses.replace(agent, prompt=told[0]) if told else agent
    made = [line["command"] for line in run.commands() if line.get("made")]
    return ExportedTeam(
        config, dict(spec.agents), profiles, _results(run, config, iteration), public(made[0]) if made else ""
    )


def public(command: str) -> str:
    """Names what a command names by its place on this machine by its name alone: cards are read elsewhere."""
    try:
        return shlex.join(_FOLDERS.sub("", word) for word in shlex.split(command))
    except ValueError:  # a record that no shell has written
        return ""


def _results(run: RunFolder, config: Any, iteration: int) -> str:
    """Writes what these weights reached, as Markdown: with n, intervals, and how they were decoded."""
    evaluated = run.recorded("eval")
    if iteration not in evaluated:
        return f"These weights (iteration {iteration}) were not evaluated."
    way = "greedy" if config.eval_greedy else f"sampled at temperature {config.temperature:g}"
    task = arguments.task(config.env, config.env_kwargs)
    lines = [f"{task}, {run.evaluation_set()}, {way}; 95 % intervals:", "", "| team | score |", "|---|---|"]
    if iteration == UNTRAINED or UNTRAINED not in evaluated:
        return "\n".join([*lines, f"| iteration {iteration} | {estimate(run.evaluation(iteration))} |"])
    gain = run.gain(iteration)
    assert gain is not None
    before, after, difference = gain
    return "\n".join(
        [
            *lines,
            f"| {'as this run began' if config.start or config.adapters else 'untrained'} | {before} |",
            f"| iteration {iteration} | {after} |",
            f"| difference, paired | {difference.points()} |",
        ]
    )


def _next(wanted: Any, out: Path) -> str:
    """Says what to type next: a server for all policies of the first base model."""
    first = next(iter(wanted.policies.values()))
    if wanted.whole:
        return shlex.join(["vllm", "serve", str(out / next(iter(wanted.policies)))])
    base = shlex.quote(str(out / first.folder if first.folder else first.location))
    names = [policy for policy, model in wanted.policies.items() if model is first]
    modules = shlex.join(f"{name}={out / name}" for name in names)
    rank = wanted.team.config.lora_r
    command = f"vllm serve {base} --enable-lora --max-lora-rank {max(rank, 8)} --lora-modules {modules}"
    if first.unbent:  # vLLM applies the base's settings to its adapters, a penalty in greedy replies, too
        command += f" --override-generation-config {shlex.quote(json.dumps(first.unbent))}"
    return command
