"""Shapes of chat templates, and tokenizers that know a family's markers as the real ones do: special, plain, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers.injections import FAMILIES

ZEPHYR = """\
{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}</s>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
VICUNA = """\
{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}

{% elif m.role == 'user' %}USER: {{ m.content }}
{% else %}ASSISTANT: {{ m.content }}</s>
{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
ALPACA = """\
{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}

{% else %}### {{ 'Instruction' if m.role == 'user' else 'Response' }}:
{{ m.content }}

{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:
{% endif %}"""
QWEN_3 = """\
{% if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Return <tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>.<|im_end|>
{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}
{% else %}{{ m.content }}{% endif %}{% for call in m.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

_QWEN_PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

SHAPES: dict[str, tuple[str, Sequence[str], Sequence[str], Sequence[str]]] = {
    name: (FAMILIES[name][0], FAMILIES[name][1], (), ())
    for name in ("qwen", "llama 3", "gemma", "mistral", "phi 3", "phi 4")
}
SHAPES |= {
    "deepseek r1 distill": (
        FAMILIES["deepseek"][0],
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁outputs▁begin｜>", "<think>", "</think>"),
        (),
    ),
    "qwen 3": (QWEN_3, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), _QWEN_PLAIN, ()),
    "llama 2": (FAMILIES["llama 2"][0], ("<s>", "</s>", "<unk>"), (), ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>")),
    "zephyr": (ZEPHYR, ("<s>", "</s>"), (), ("<|system|>", "<|user|>", "<|assistant|>")),
    "vicuna": (VICUNA, ("<s>", "</s>"), (), ("\nUSER:", "\nASSISTANT:")),
    "alpaca": (ALPACA, ("<s>", "</s>"), (), ("\n### Instruction:", "\n### Response:")),
    "nested names": (FAMILIES["phi 3"][0], ("<|user|>", "<|end|>"), ("|user|>", "<|<|user|>", "|||ID|||", "##a##"), ()),
}  # fmt: skip
"""Family -> template, special tokens, plain added tokens, and what the template writes that is no token."""


@cache
def shaped(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family."""
    template, special, plain, _ = SHAPES[name]
    return tokenizer_of(template, special, plain)


def tokenizer_of(
    template: str, special: Sequence[str], plain: Sequence[str] = (), normalizer: normalizers.Normalizer | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with these added tokens; plain ones are looked for behind the normaliser, if there is one."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(letters))}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    if normalizer is not None:
        core.normalizer = normalizer
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.add_tokens([AddedToken(token, special=False, normalized=normalizer is not None) for token in plain])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        chat_template=template,
        bos_token=special[0] if special else None,
        clean_up_tokenization_spaces=False,
    )
