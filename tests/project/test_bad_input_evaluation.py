"""Bad input: what is typed about a run that is there. Every line of the table is refused, and says what happened, what was expected, what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import bad_input

TABLE = r"""
eval | Which run? | marft eval RUN | marft eval --untrained
eval nowhere | 'nowhere' is no run: there is no config.toml | Known: evil, runs/done | marft train
eval done --swap nobody | 'nobody' is no agent | Known: planner_0, solver_0 | marft eval --help
eval done --checkpoint 9 | There is no checkpoint '9' in | Expected last, best or one of [0, 2] | marft eval --help
eval done --checkpoint newest | There is no checkpoint 'newest' in | Expected last, best or one of [0, 2] | marft eval --help
eval done --episodes 0 | episodes is 0 | expected at least 1, or none | marft eval --help
eval done --episodes x | 'x' is no whole number and not none | --episodes INT|none | marft eval --help
eval done --models embedded | A trained team plays on its own base models | Add --untrained, or leave --models out | --untrained, or leave --models out
eval done --env xor-v0 | has no policy 'left_0' | Did you mean 'solver_0'? | Did you mean 'solver_0'
eval done --env relai-v0 | There is no environment 'relai-v0' | Did you mean 'relay-v0'? All of them: marft | Did you mean 'relay-v0'
eval done --device tpu | Unknown device 'tpu' | Did you mean 'cpu'? | Did you mean 'cpu'
eval done --env-kwargs levls=3 | 'relay-v0' takes no 'levls' | Known: attribution, dependency, history, | marft eval --help
eval done --scenarios s.json | --scenarios is about --compare | Type: marft eval --compare RUN_A RUN_B | Type: marft eval --compare RUN_A RUN_B
eval done --episodes 1 --swap planner | Shuffling messages takes at least two | Raise --episodes | --episodes
eval done --swap solver | solver_0 gives the answer | no other agent sees its words | Name an agent that another one sees: --swap planner_0
eval --untrained --env math-solo-v0 --swap actor | actor_0 gives the answer | no other agent sees its words | Leave --swap out
eval --compare done | --compare got 1 runs | Expected two: marft eval --compare RUN_A RUN_B | Expected two: marft eval --compare RUN_A RUN_B
eval --compare done done done | --compare got 3 runs | Expected two: marft eval --compare RUN_A RUN_B | Expected two: marft eval --compare RUN_A RUN_B
eval --compare done done --episodes 3 | --compare takes two runs, --scenarios and | and nothing else | and nothing else
eval --compare done nowhere | 'nowhere' is no run: there is no config.toml | Known: evil, runs/done | marft train
eval done --samples 4 | --samples belongs to --engines | Type: marft eval --env ID --engines … | Type: marft eval --env ID --engines …
eval done --jobs 3 | --jobs belongs to --engines | Type: marft eval --env ID --engines … | Type: marft eval --env ID --engines …
eval --samples 0 | samples is 0 | expected at least 1 | marft eval --help
eval --untrained --env relai-v0 | There is no environment 'relai-v0' | Did you mean 'relay-v0'? All of them: marft | Did you mean 'relay-v0'
eval --untrained --checkpoint best | --untrained plays no checkpoint | Leave out --untrained, or --checkpoint | Leave out --untrained, or --checkpoint
eval done --untrained --checkpoint best | --untrained plays no checkpoint | Leave out --untrained, or --checkpoint | Leave out --untrained, or --checkpoint
eval --untrained --data nowhere.jsonl | 'nowhere.jsonl' is neither a data set nor a | Known: | For your own data, give the path of a JSONL
eval --untrained --env relay-v0 --models ./nowhere | There is no model folder './nowhere' | Known: dir, embedded, embedded-code, | marft eval --help
eval --engines | --engines needs a value: a model, AGENT=MODEL | a model, AGENT=MODEL | a model, AGENT=MODEL
eval done --engines embedded | --engines plays a team without a run, and a | Leave out one of the two | Leave out one of the two
eval --engines embedded | Which environment? | marft eval --env ID --engines | marft envs
eval --env relay-v0 --engines nobody=embedded | --engines names an unknown agent 'nobody' | Known: planner_0, solver_0 | Known: planner_0, solver_0
eval --env relay-v0 --engines planner_0=embedded | Nobody plays solver_0 | Expected --engines solver_0=MODEL (embedded, | --engines solver_0=MODEL (embedded,
eval --env relay-v0 --engines ./nowhere | There is no model folder './nowhere' | Known: dir, embedded, embedded-code, | marft eval --help
eval --env relay-v0 --engines '{kind: openai}' | --engines {kind: openai} … cannot be read as | Expected one in TOML or JSON, in quotes that | Expected one in TOML or JSON, in quotes that
eval --env relay-v0 --engines embedded --price 1 | --price 1: | expected IN,OUT per million tokens, 0 or | --price 1: expected IN,OUT per million
eval --env relay-v0 --engines embedded --price -1,2 | --price -1,2: | expected IN,OUT per million tokens, 0 or | --price -1,2: expected IN,OUT per million
eval --env relay-v0 --engines embedded --temperature 0 | temperature is 0.0 | expected more than 0, or none | marft eval --help
eval --env relay-v0 --engines embedded --out x.jsonl | --out x.jsonl: with --engines it names a | Type: --out evals/NAME | Type: --out evals/NAME
eval --env relay-v0 --engines embedded --max-new-tokens 0 | max_new_tokens is 0 | expected at least 1, or none | marft eval --help
export | Missing from marft export | (required) | marft export --help
export nowhere | 'nowhere' is no run: there is no config.toml | Known: evil, runs/done | marft train
export done --private | --private and --dry-run are about --push | Leave them out, or say where to push | Leave them out, or say where to push
export done --dry-run | --private and --dry-run are about --push | Leave them out, or say where to push | Leave them out, or say where to push
export done --gguf-type q8_0 | --gguf-type and --llama-cpp are about --gguf | Add it, or leave them out | Add it, or leave them out
export done --gguf-type q9 | invalid choice 'q9' for argument | Expected one of ('f32', 'f16', 'bf16', | marft export --help
export done --gguf --llama-cpp nowhere | There is no convert_hf_to_gguf.py in 'nowhere' | Expected a clone of llama.cpp: --llama-cpp DIR | --llama-cpp DIR
export done --gguf | llama.cpp's convert_hf_to_gguf.py is not on | Get llama.cpp (git clone | --llama-cpp DIR. Or leave out --gguf
export done --push noslash | --push noslash names no account | Expected USER/NAME | Expected USER/NAME
export done --push bad//name | --push bad//name: | Expected USER/NAME | --push bad//name: Repo id must be in the form
export done --push user/name | There is no token for the hub | hf auth login | HF_TOKEN
export done --out full | 'full' exists and is no export | Choose another folder: --out DIR | --out DIR
export done --checkpoint 77 | There is no checkpoint '77' in | Expected last, best or one of [0, 2] | marft export --help
export done --checkpoint newest | There is no checkpoint 'newest' in | Expected last, best or one of [0, 2] | marft export --help
export runs/done/checkpoints | 'runs/done/checkpoints' is no run, but lies | Type that, and which checkpoint where it | --checkpoint last, best or a number
export done extra | Unrecognized options: extra | For full helptext | marft export --help
play relay-v0 --team runs/none | 'runs/none' is no run: there is no | Did you mean 'runs/done'? Start one: marft | Did you mean 'runs/done'
play xor-v0 --team done | The team of runs/done was trained on relay-v0 | Did you mean 'solver_0'? Its own game: marft | marft play relay-v0 --team runs/done
play relay-v0 --random --team done | --random plays everybody at random, and | Expected one of them: leave out --random, or | leave out --random, or --team
show done extra | Unrecognized options: extra | For full helptext | marft show --help
train --resume done --env xor-v0 | 'runs/done' has trained with marft on | To begin another run with its weights: marft | marft on relay-v0, and goes on so. To begin
train --resume done --algo grpo | 'runs/done' has trained with marft on | To begin another run with its weights: marft | marft on relay-v0, and goes on so. To begin
train --resume done --start done | A run that goes on has begun | To begin another one with its weights: marft | marft train --start runs/done
train --resume done --seed 7 | 'runs/done' has drawn from seed 0, and goes | Leave out --seed | --seed; to begin another run with its
train --start done/checkpoints/step_000099 | There is no checkpoint '99' in | Expected last, best or one of [0, 2] | marft train --help
train --start done --env xor-v0 | done, step_000002 (marft on relay-v0) has no | it has planner_0, solver_0 | marft on relay-v0) has no policy 'left_0'; it
train --env relay-v0 --name done | 'runs/done' exists already | Go on with it: marft train --resume runs/done | marft train --resume runs/done. Or choose
dpo --beta -1 --demonstrations done | beta is -1.0 | expected more than 0 | marft dpo --help
"""


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    return bad_input.with_run(folder)


@pytest.mark.parametrize(("command", "parts"), bad_input.table(TABLE))
def test_refused(command: str, parts: tuple[str, ...], refused: bad_input.Refused) -> None:
    refused(command, parts)
