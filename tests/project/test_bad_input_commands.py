"""Bad input: of commands that look at environments, files and benchmarks. Every line of the table is refused, and says what happened, what was expected, what to type."""

from __future__ import annotations

import pytest

from helpers import bad_input

TABLE = r"""
trian | there is no command 'trian' | Did you mean 'train'? | Did you mean 'train'
--env relay-v0 train | the command comes first | the command comes first: marft train | marft train --env relay-v0
rft --env relay-v0 | there is no command 'rft' | as an algorithm: marft train rft --env | marft train rft --env relay-v0
--bogus | there is no command '--bogus' | Known: algorithms, audit, bench | Known: algorithms, audit, bench
TRAIN | there is no command 'TRAIN' | Did you mean 'train' | train
envs relai-v0 | There is no environment 'relai-v0' | Did you mean 'relay-v0'? All of them: marft | Did you mean 'relay-v0'
envs relay-v9 | There is no version 9 of 'relay' | There is: relay-v0 | marft envs --help
envs relai | There is no environment 'relai' | Did you mean 'relay-v0'? All of them: marft | Did you mean 'relay-v0'
envs relay-v0 extra | Unrecognized options: extra | For full helptext | marft envs --help
envs --bogus | Unrecognized options: --bogus | For full helptext | marft envs --help
envs math-dual-v0 --env-kwargs levels | 'levels' is no KEY=VALUE | --env-kwargs KEY=VALUE… | marft envs --help
envs math-dual-v0 --env-kwargs levls=[0] | 'math-dual-v0' takes no 'levls' | Did you mean 'levels'? | Did you mean 'levels'
envs math-dual-v0 --env-kwargs levels=abc | levels is 'abc' | expected whole numbers, like 0 or [0, 1] | Name several levels in a list
envs math-dual-v0 --env-kwargs levels=[99] | 'procedural' (train) has no problem of levels | Levels there: 0 to 5 | marft envs --help
envs math-dual-v0 --env-kwargs rounds=0 | max_rounds is 0 | expected a whole number, at least 1 | Say max_rounds=1, or leave it out
envs math-dual-v0 --env-kwargs rounds=1.5 | max_rounds is 1.5 | expected a whole number, at least 1 | Say max_rounds=1, or leave it out
envs math-dual-v0 --env-kwargs data=nowhere.jsonl | 'nowhere.jsonl' is neither a data set nor a | Known: | For your own data, give the path of a JSONL
envs math-dual-v0 --env-kwargs data=empty.jsonl | empty.jsonl holds no rows | Expected one JSON object with 'problem' and | marft envs --help
envs math-dual-v0 --env-kwargs data=broken.jsonl | broken.jsonl, line 1: not JSON (Expecting ',' | Expected one object per line | marft envs --help
envs math-dual-v0 --env-kwargs data=noanswer.jsonl | noanswer.jsonl, line 1: no column 'answer' | The row has: problem | marft envs --help
envs math-dual-v0 --env-kwargs data=list.jsonl | list.jsonl, line 1: | expected a JSON object with 'problem' and | marft envs --help
envs math-dual-v0 --env-kwargs data=binary.jsonl | binary.jsonl, line 1: not UTF-8 text ('utf-8' | Save the file as UTF-8 | marft envs --help
envs math-dual-v0 --env-kwargs split=tset | The procedural set has no split 'tset' | Did you mean 'test'? | Did you mean 'test'
envs math-dual-v0 --env-kwargs profiles=nowhere.json | Cannot read profiles from nowhere.json: | Expected a JSON file: a list of profiles, or | marft envs --help
envs math-dual-v0 --env-kwargs profiles=profiles_broken.json | Cannot read profiles from | Expected a JSON file: a list of profiles, or | marft envs --help
envs math-dual-v0 --env-kwargs profiles=profiles_list.json | profiles_list.json, entry 0: | expected {"role": text, "prompt": text, | marft envs --help
envs math-dual-v0 --env-kwargs profiles=profiles_stranger.json | There is no agent or role 'nobody_0' to have | Known: actor, actor_0, reasoner, reasoner_0 | marft envs --help
envs math-dual-v0 --env-kwargs profiles=profiles_number.json | profiles_number.json, actor_0: | expected text, or an object of prompt and | marft envs --help
envs math-dual-v0 --env-kwargs profiles=profiles_empty.json | Cannot read profiles from profiles_empty.json: | Expected a JSON file: a list of profiles, or | marft envs --help
envs math-dual-v0 --env-kwargs dependency=chian | There is no dependency 'chian' | Did you mean 'chain'? | Did you mean 'chain'
envs math-dual-v0 --env-kwargs dependency=[[1]] | got shape (1, 1) | must be a 2 x 2 matrix | marft envs --help
envs relay-v0 --env-kwargs dependency=3 | Cannot read a dependency function from 3 | Expected 'chain', 'previous', 'independent', | marft envs --help
envs pettingzoo:nothing_v3 | PettingZoo has no environment 'nothing_v3' | Did you mean 'pong_v3'? Others by their | Did you mean 'pong_v3'
envs gymnasium:Nope-v0 | Gymnasium has no environment 'Nope-v0': | Did you mean: `Hopper`? | marft envs --help
envs nomodule:x | There is no module 'nomodule' to import for | Expected module:name, importable from here | marft envs --help
envs tools-solo-v0 --env-kwargs domain=dpot | There is no tool domain 'dpot' | Did you mean 'depot'? Or say module:callable | Did you mean 'depot'
envs code-solo-v0 --env-kwargs layer=none | 'code-solo-v0' takes no 'layer' | Did you mean 'filter'? | Did you mean 'filter'
play | Missing from marft play | Environment. (required) | marft play --help
play relai-v0 | There is no environment 'relai-v0' | Did you mean 'relay-v0'? All of them: marft | Did you mean 'relay-v0'
play relay-v0 --agent solver0 | There is no agent 'solver0' in relay-v0 | Did you mean 'solver_0'? | Did you mean 'solver_0'
play relay-v0 --episodes 0 | episodes is 0 | expected at least 1 | marft play --help
play relay-v0 --episodes many | 'many' is no whole number | --episodes INT | marft play --help
play relay-v0 --seed -1 | seed is -1 | expected 0 or more | marft play --help
play relay-v0 --seed 1.5 | '1.5' is no whole number | --seed INT | marft play --help
play relay-v0 --random extra | Unrecognized options: extra | For full helptext | marft play --help
play relay-v0 | The input has ended before the episode | To play without typing | marft play ID --random
play relay-v0 --random --agent planner_0 | --random plays everybody at random, and | Expected one of them: leave out --random, or | leave out --random, or --agent
play math-dual-v0 --random --env-kwargs profiles=profiles_broken.json | Cannot read profiles from | Expected a JSON file: a list of profiles, or | marft play --help
check | Missing from marft check | (required) | marft check --help
check relai-v0 | There is no environment 'relai-v0' | Did you mean 'relay-v0'? All of them: marft | Did you mean 'relay-v0'
check nomodule:x | There is no module 'nomodule' to import for | Expected module:name, importable from here | marft check --help
check broken_module:make | The module 'broken_module' cannot be imported | SyntaxError: invalid syntax | --debug shows the whole traceback
check raising:make | 'make' makes no environment for | RuntimeError: no luck | --debug shows the whole traceback
check raising:make_late | 'make_late' makes no environment for | KeyError: 'x' | --debug shows the whole traceback
check own:nothing | Cannot load 'own:nothing': module 'own' has | Expected an importable module:callable | marft check --help
check own:impure | breaks 'purity' | The promise: | --debug shows where it broke
check own:leaks_seed | custom breaks 'seed_test': | equal seeds, equal episodes | --debug shows where it broke
check own:two_alike | Agent names must be unique | got ['a_0', 'a_0'] | Number them: solver_0, solver_1, …
check own:bad_name | An agent is called 'a b!' | expected letters, digits, '_', '-' and '.', | AgentSpec('solver_0', 'solver')
check own:cycle | The dependency function has a cycle among | Remove an edge | on_cycle='lag'
check own:unknown_agent | Layered names the agent 'c_0', which is not | Did you mean 'b_0'? | Did you mean 'b_0'
check own:no_agents | A team needs at least one agent | at least one agent | FlexEnv([AgentSpec('solver_0', 'solver')],
check own:no_hook | The task NoHook has no on_layer, on_round, | expected reset, observe, on_layer, on_round, | docs/custom-tasks.md has a whole one
check own:bad_reward | A reward of the task is 'much' | expected a finite number | Next: let on_layer and on_round return numbers
check own:nan_reward | A reward of the task is nan | expected a finite number | Next: let on_layer and on_round return numbers
check own:bad_outcome | BadOutcome answered 1.0 to a layer or round | expected an Outcome | Next: return
check own:router_none | custom breaks 'api_test': | expected a list of agent names or Turn | --debug shows where it broke
check own:strange_router | custom breaks 'api_test': | expected a list of agent names or Turn | --debug shows where it broke
check own:typo --env-kwargs levles=3 | 'own:typo' takes no 'levles' | Did you mean 'levels'? | Did you mean 'levels'
check relay-v0 --env-kwargs rounds | 'rounds' is no KEY=VALUE | --env-kwargs KEY=VALUE… | marft check --help
profiles | Missing from marft profiles | The environment's id. (required) | marft profiles --help
profiles relay-v0 | 'relay-v0' takes no profiles, so these would | Expected an environment with that argument, | marft envs
profiles math-dual-v0 --shots 0 | shots is 0 | expected at least 1 | marft profiles --help
profiles math-dual-v0 --seed -1 | seed is -1 | expected 0 or more | marft profiles --help
profiles maht-dual-v0 | There is no environment 'maht-dual-v0' | Did you mean 'math-dual-v0'? All of them: | Did you mean 'math-dual-v0'
bench rnu | There is no 'marft bench rnu' | Did you mean 'run'? | Did you mean 'run'?
bench run | Missing from marft bench run | (required) | marft bench run --help
bench run none.toml --out x | Cannot read the settings in 'none.toml': | Expected a TOML file | marft bench run --help
bench run grid.toml | Missing from marft bench run | --out PATH | marft bench run --help
bench run grid.toml --out x --jobs 0 | jobs is 0 | expected at least 1 | marft bench run --help
bench run grid.toml --out x --stage swep | invalid choice 'swep' for argument '--stage'. | Expected one of ('all', 'sweep', 'main') | marft bench run --help
bench run grid.toml --out x --stage sweep | The grid has no [sweep] with learning rates | [sweep] with learning rates and seeds | marft bench run --help
bench run grid.toml --out full | 'full' is not empty and no benchmark | Choose another folder: --out DIR | --out DIR
bench report | Missing from marft bench report | (required) | marft bench report --help
bench report nowhere | 'nowhere' is no benchmark: bench.json cannot | Start one: marft bench run GRID.toml --out | marft bench run GRID.toml --out nowhere
bench report full | 'full' is no benchmark: bench.json cannot be | Start one: marft bench run GRID.toml --out | marft bench run GRID.toml --out full
bench pack nowhere | is no benchmark: bench.json cannot | Start one: marft bench run GRID.toml --out | marft bench run GRID.toml --out
bench run g_text.toml --out x --plan | 'algorithms' cannot be 'marft' | should be a valid tuple | Write: algorithms = ["marft"]
bench run g_unknown.toml --out x --plan | no algorithm 'mraft' | Did you mean 'marft'? | Did you mean 'marft'
bench run g_env.toml --out x --plan | no environment 'relai-v0' | Did you mean 'relay-v0'? All of them: marft | Did you mean 'relay-v0'
bench run g_twice.toml --out x --plan | In the grid: 'seeds' is [0, 0] | expected at least one, and none twice | marft bench run --help
bench run g_negative.toml --out x --plan | In the grid: seeds[0] is -1 | expected between 0 and 4294967295 | marft bench run --help
bench run g_budget.toml --out x --plan | In the grid: token_budget is 0 | expected at least 1 | marft bench run --help
bench run g_missing.toml --out x --plan | In the grid: 'envs' is not there, and has no | has no default | marft bench run --help
bench run g_key.toml --out x --plan | no setting 'tokens' | Did you mean 'envs'? | Did you mean 'envs'
bench run g_baseline.toml --out x --plan | The baseline 'ppo2' is in neither | Known: marft, reinforce, rft, single, | Name a row of the grid: baseline = "marft"
bench run g_control.toml --out x --plan | 'controls' cannot be ['untraind'] | 'untrained', 'single', 'vote' | marft bench run --help
bench run g_sweep0.toml --out x --plan | lr[0] is 0.0 | expected more than 0 and at most 1 | marft bench run --help
bench run g_shared.toml --out x --plan | Seeds [0] are in both stages | rates chosen on a seed flatter it | marft bench run --help
bench run g_members.toml --out x --plan | In the grid: [env.relay-v0]: members is 1 | a vote takes two or more, trained here | marft bench run --help
bench run g_trained_on.toml --out x --plan | is trained on 'nope' | no label that trains a team | marft bench run --help
bench run g_reference.toml --out x --plan | The reference 'nope' is not in 'envs' | Known: relay-v0 | marft bench run --help
bench run g_settings.toml --out x --plan | no setting 'iteratoins' | Did you mean 'iterations'? All: marft train | Did you mean 'iterations'
bench run g_value.toml --out x --plan | lora_r is 0 | expected at least 1 | marft bench run --help
bench run g_credit.toml --out x --plan | no credit rule 'nope' | Known: blame, broadcast, counterfactual, | marft bench run --help
bench run g_label.toml --out x --plan | In the grid: [algorithm.other] is not in | Known: marft, reinforce, rft | marft bench run --help
bench run broken.toml --out x --plan | 'broken.toml' is not TOML: | Expected lines such as: lr = 1e-4 | marft bench run --help
bench run g_code.toml --out x --plan | 'g_code.toml' has settings that run code, | Read them, and if you want that: marft bench | marft bench run g_code.toml --out x --plan
show nowhere | 'nowhere' is no run: there is no config.toml | Known: evil | marft train
show evil | evil/metrics.jsonl, line 1 is not JSON: | is not JSON | Take it out, or go back to a copy of the run
envs raising:make | 'make' makes no environment for | RuntimeError: no luck | --debug shows the whole traceback
play raising:make --random | 'make' makes no environment for | RuntimeError: no luck | --debug shows the whole traceback
play relay-v0 --episodes none | 'none' is no whole number | --episodes INT | marft play --help
doctor --jsn | Unrecognized options: --jsn | --json, --no-json | marft doctor --help
doctor relay-v0 | Unrecognized options: relay-v0 | For full helptext | marft doctor --help
"""


@pytest.mark.parametrize(("command", "parts"), bad_input.table(TABLE))
def test_refused(command: str, parts: tuple[str, ...], refused: bad_input.Refused) -> None:
    refused(command, parts)
