"""Bad input: settings of training. Every line of the table is refused, and says what happened, what was expected, what to type."""

from __future__ import annotations

import pytest

from helpers import bad_input

TABLE = r"""
train --iteratoins 3 | Unrecognized options: --iteratoins, 3 | Perhaps you meant | --iterations INT
train --env relay-v0 grpo | Unrecognized options: grpo | The algorithm comes first | marft train grpo --env relay-v0
train --profiles mine.json | Unrecognized options: --profiles, mine.json | profiles is an argument of math-dual-v0 | --env-kwargs profiles=…
train --levels=[0] | Unrecognized options: --levels=[0] | levels is an argument of math-dual-v0 | --env-kwargs levels=[0]
train mraft | There is no algorithm 'mraft' | Did you mean 'marft'? | Did you mean 'marft'
train nomodule:Algo | There is no module 'nomodule' to import for | Expected module:name, importable from here | marft train --help
train own:Nope | Cannot load algorithm 'own:Nope': module | Expected module:Class, importable | marft train --help
train own:NotAlgorithm | 'own:NotAlgorithm' is no algorithm | Expected a subclass of marft_algos.Algorithm | marft train --help
train --lr abc | lr is 'abc' | expected a number (between 0 and 1) or a table | marft train --help
train --lr nan | lr is nan | expected between 0 and 1 | marft train --help
train --lr nobody_0=1e-4 | 'lr' names an unknown policy 'nobody_0' | Known: actor_0, reasoner_0 | marft train --help
train --clip -0.2 | clip is -0.2 | expected more than 0 and at most 1 | marft train --help
train --epochs 0 | epochs is 0 | expected at least 1 | marft train --help
train --lambda-tok 5 | lambda_tok is 5.0 | expected between 0 and 1 | marft train --help
train --lora-targets nothing | Could not put an adapter on 'embedded': | Expected names of its linear layers, or | marft train --help
train --critic-hidden -4 | critic_hidden[0] is -4 | expected at least 1 | marft train --help
train --iterations -1 | iterations is -1 | expected 0 or more | marft train --help
train --iterations | Missing value for argument '--iterations'. | Expected 1 values | marft train --help
train --seed -1 | seed is -1 | expected between 0 and 4294967295 | marft train --help
train --temperature hot | 'hot' is no number | --temperature FLOAT | marft train --help
train --max-new-tokens 100000 | The prompts of 64 of the first 64 problems do not fit | Lower --max-new-tokens, shorten the profiles | --max-new-tokens, shorten the profiles (or
train --device tpu | Unknown device 'tpu' | Did you mean 'cpu'? | Did you mean 'cpu'
train --device cuda | Device 'cuda' was asked for, but torch sees | Type: --device cpu | Type: --device cpu
train --dtype fp16 | invalid choice 'fp16' for argument '--dtype'. | Expected one of ('auto', 'fp32', 'bf16') | marft train --help
train --quantize nf4 | Base weights of 4 bits (package | Type in the clone: pip install -e '.[quant]' | pip install -e '.[quant]'
train --env relay-v0 --models ./nowhere | There is no model folder './nowhere' | Known: dir, embedded, embedded-code, | marft train --help
train --env relay-v0 --models emptydir | emptydir' holds no config.json | Expected what model.save_pretrained(folder) | marft train --help
train --env relay-v0 --models '' | A model has an empty name | A model is 'embedded' (tiny, works offline), | marft train --help
train --models actor0=embedded | 'models' names an unknown policy 'actor0' | Did you mean 'actor_0'? | Did you mean 'actor_0'
train --policies sharedd | Unknown sharing 'sharedd' | Did you mean 'shared'? | Did you mean 'shared'
train --policies foo_0=a | No agent or role is called 'foo_0' in this | Did you mean 'actor_0'? | Did you mean 'actor_0'
train --frozen nobody | 'frozen' names an unknown policy 'nobody' | Known: actor_0, reasoner_0 | marft train --help
train --frozen actor_0 reasoner_0 | Every policy (actor_0, reasoner_0) is frozen | Leave one out of frozen and engines and give | --iterations 0
train --adapters actor_0=nowhere | There is no adapter_model.safetensors in | Expected the folder of one saved policy | None are known
train --env-kwargs levels | 'levels' is no KEY=VALUE | --env-kwargs KEY=VALUE… | marft train --help
train --preset quikstart | There is no preset 'quikstart' | Did you mean 'quickstart'? | Did you mean 'quickstart'
train grpo --group-size 1 | grpo compares episodes of one start: | at least 2 | marft train --help
train grpo --group-size 7 --episodes-per-iteration 64 | episodes_per_iteration is 64, which is no | try --episodes-per-iteration 63 | --episodes-per-iteration 63
train --resume | --resume needs a value | --resume needs a value | marft train --help
train --resume nowhere | 'nowhere' is no run: there is no config.toml | Known: evil | marft train
train --start nowhere | 'nowhere' is no run: there is no config.toml | Known: evil | marft train
train --config none.toml | Cannot read the settings in 'none.toml': | Expected a TOML file | marft train --help
train --config broken.toml | 'broken.toml' is not TOML: | Expected lines such as: lr = 1e-4 | marft train --help
train --config unknown.toml | There is no setting 'iteratoins' | Did you mean 'iterations'? All: marft train | Did you mean 'iterations'
train --config unknown_algorithm.toml | There is no setting 'lrr' | Did you mean 'lr'? All: marft train --help | Did you mean 'lr'
train --config wrong_type.toml | The setting 'iterations' cannot be 'many': | Input should be a valid integer, unable to | marft train --help
train --config badrange.toml | clip is -1.0 | expected more than 0 and at most 1 | marft train --help
train --config section.toml | [algorithm] must be a table of settings of | got 3 | marft train --help
train --config control.toml | name in 'control.toml' holds the control | Take it out of the file | marft train --help
train --config latin.toml | 'latin.toml' is not TOML: 'utf-8' codec can't | Expected lines such as: lr = 1e-4 | marft train --help
train --config code.toml | 'code.toml' has settings that run code, start | Read them, and if you want that: marft train | marft train --config code.toml --trust
train --config emptyname.toml | There is no setting '' | Known: adam_eps, adapter_dir, adapters, | marft train --help
train --data nowhere.jsonl | 'nowhere.jsonl' is neither a data set nor a | Known: | For your own data, give the path of a JSONL
train --data empty.jsonl | empty.jsonl holds no rows | Expected one JSON object with 'problem' and | marft train --help
train --data noanswer.jsonl | line 1: no column 'answer' | The row has: problem | marft train --help
train --env relay-v0 --data rows.jsonl | 'relay-v0' takes no 'data' | Known: attribution, dependency, history, | marft train --help
train --name ../esc | A run named '../esc' would lie outside runs | Expected a name such as 'first', or | --runs-dir FOLDER
train --runs-dir empty.jsonl | Cannot write | Expected a folder, or room for one, there: | --runs-dir or --name
train --loggers wandbb | invalid choice 'wandbb' for argument | Expected one of ('tensorboard', 'trackio' | marft train --help
train --credit nope | There is no credit rule 'nope' | Known: blame, broadcast, counterfactual, | marft train --help
train --reduction-slots 3 | 3 reduction slots cannot be dealt to 1 ranks | Expected a power of two, no fewer | --reduction-slots 8. (A run that goes on with other
train --shard base --full-finetune | A base that is trained itself is not sharded | Leave out --full-finetune, or --shard base | --full-finetune, or --shard base
train --nproc 0 | --nproc 0: | expected how many processes train together on | --nproc 0: expected how many processes train
train --nproc | --nproc needs a value | --nproc needs a value | marft train --help
train --nproc 2 --nnodes 2 | --nnodes is an option of torchrun | starts the ranks of several machines | torchrun --nnodes 2 --nproc-per-node 2
train --engines 'actor_0={kind="vllm"}' | engines.actor_0: | Expected {kind = "vllm", url = | marft train --help
train --engines 'actor_0={kind="vlm", url="http://127.0.0.1:1"}' | engines.actor_0: | Did you mean 'vllm'? Expected {kind = "vllm", | Did you mean 'vllm'
train --engines 'actor_0={kind="openai", model="x", api_key="sk-1"}' | engines.actor_0: | An engine of kind openai has no setting | Keys stay in the environment: key_env = "NAME"
train --engines 'actor_0={kind="openai", model="x", url="not a url"}' | engines.actor_0: | Expected {kind = "vllm", url = | marft train --help
train --engines 'nobody={kind="openai", model="x", url="http://127.0.0.1:1"}' | 'engines' names an unknown policy 'nobody' | Known: actor_0, reasoner_0 | marft train --help
train --env | --env needs a value | --env needs a value | marft train --help
train --env '' | There is no environment '' | Known: cases-v0, code-dual-v0, | marft envs
train --env nomodule:x | There is no module 'nomodule' to import for | Expected module:name, importable from here | marft train --help
train --env own:number | This environment cannot be trained as it is. | Needed: pettingzoo.AECEnv, | marft train --help
train dpo | Preferences are learnt from recorded | Name them: --demonstrations runs/NAME, or a | --demonstrations runs/NAME, or a JSONL file
sft grpo | Unrecognized options: grpo | The algorithm comes first | marft train grpo
sft --demonstrations nowhere | There are no demonstrations at 'nowhere' | Expected 'expert', a JSONL file of episodes, | marft sft --help
sft --demonstrations empty.jsonl | empty.jsonl' holds no episode | Expected one recorded episode a line, as a | as a run writes them (runs/NAME/episodes)
sft --demonstrations broken.jsonl | broken.jsonl:1: | Expected one recorded episode a line, as a | as a run writes them (runs/NAME/episodes)
dpo | Preferences are learnt from recorded | recorded episodes, good and bad | --demonstrations runs/NAME, or a JSONL file
dpo --demonstrations empty.jsonl | empty.jsonl' holds no episode | Expected one recorded episode a line, as a | as a run writes them (runs/NAME/episodes)
"""


@pytest.mark.parametrize(("command", "parts"), bad_input.table(TABLE))
def test_refused(command: str, parts: tuple[str, ...], refused: bad_input.Refused) -> None:
    refused(command, parts)
