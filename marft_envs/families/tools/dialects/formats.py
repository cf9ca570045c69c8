"""The table of dialects: how each model family writes calls."""

from __future__ import annotations

from marft_envs.core import thoughts
from marft_envs.families.tools.dialects.base import Dialect
from marft_envs.families.tools.dialects.gemma import Gemma4
from marft_envs.families.tools.dialects.harmony import Harmony
from marft_envs.families.tools.dialects.hermes import Hermes
from marft_envs.families.tools.dialects.pythonic import LlamaPythonic, PythonBlock
from marft_envs.families.tools.dialects.tagged import Glm, Invoked, Muse, QwenXml
from marft_envs.families.tools.dialects.tags import Tags
from marft_envs.families.tools.dialects.wrapped import Cohere, DeepSeek, JsonList, Kimi, LlamaJson, Mistral

_CALL = '{"name": %(quoted)s, "arguments": %(arguments)s}'
_MISTRALS = ("[AVAILABLE_TOOLS]\n", "\n[/AVAILABLE_TOOLS]")
_FUNCTIONS = ("# Tools\n\nYou have access to the following functions:\n\n<tools>\n", "\n</tools>")


def _qwen(name: str, families: str, tag: str) -> QwenXml:
    """Functions and parameters within a tag."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    return QwenXml(
        name,
        families,
        marks=(opening, "<function=", "</function>", closing),
        also=("<parameter=", "</parameter>"),
        closes=(closing, "</function>", "</parameter>", "<parameter="),
        call=f"{opening}\n<function=%(name)s>\n%(arguments)s</function>\n{closing}",
        around=("", "\n", ""),
        argument="<parameter=%(key)s>\n%(value)s\n</parameter>",
        tags=("<parameter=", ">", "", "</parameter>"),
        sample="<parameter=key>value</parameter>",
        listing=_FUNCTIONS,
    )


def _deepseek(name: str, families: str, call: str, marks: tuple[str, ...], told: str = "") -> DeepSeek:
    """Calls in a section."""
    return DeepSeek(
        name,
        families,
        marks=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", *marks, "<｜tool▁call▁end｜>"),
        also=("<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
        closes=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        call=f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>",
        around=("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
        told=told,
    )


def _invoked(
    name: str,
    families: str,
    prefix: str,
    section: str,
    text: str = "",
    also: tuple[str, ...] = (),
    kind: type[Invoked] = Invoked,
    frames: bool = False,
) -> Invoked:
    """Invocations in a section, every tag with a prefix; ``text`` is an attribute that says whether a value is text."""
    p, section = prefix, f"{prefix}{section}"
    called, named, end = f'<{p}invoke name="', f'<{p}parameter name="', f"</{p}parameter>"
    return kind(
        name,
        families,
        marks=(f"<{section}>", called, f"</{p}invoke>", f"</{section}>"),
        also=(named, end, *also),
        closes=(),
        call=f'{called}%(name)s">\n%(arguments)s</{p}invoke>',
        around=(f"<{section}>\n", "\n", f"\n</{section}>"),
        argument=f'{named}%(key)s"{text}>%(value)s{end}',
        tags=(named, '"', ">", end),
        told=f'<{section}>{called}…">{named}…"{text}>value{end}</{p}invoke></{section}>' % {"is_text": "true"},
        listing=("<tools>\n", "\n</tools>"),
        frames=frames,
    )


_ALL = (
    Hermes(
        "hermes",
        "Qwen2.5, Qwen3, Hermes, SmolLM3",
        marks=("<tool_call>", "</tool_call>", '"arguments"'),
        call=f"<tool_call>\n{_CALL}\n</tool_call>",
        around=("", "\n", ""),
        listing=("You can call these tools:\n<tools>\n", "\n</tools>"),
    ),
    _qwen("qwen-xml", "Qwen3-Coder, Qwen3.5, Qwen3.6, Qwen3.8, Nemotron 3", "tool_call"),
    Glm(
        "glm",
        "GLM-4.5, GLM-4.6",
        also=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        closes=("</tool_call>", "<arg_key>", "</arg_value>"),
        call="<tool_call>%(name)s\n%(arguments)s</tool_call>",
        around=("", "\n", ""),
        argument="<arg_key>%(key)s</arg_key>\n<arg_value>%(value)s</arg_value>",
        tags=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        sample="<arg_key>key</arg_key><arg_value>value</arg_value>",
        listing=_FUNCTIONS,
    ),
    LlamaJson(
        "llama-json",
        "Llama 3.1, Llama 3.2, Llama 3.3, xLAM",
        marks=('"parameters"',),
        also=("<|python_tag|>",),
        call='{"name": %(quoted)s, "parameters": %(arguments)s}',
        around=("", "; ", ""),
        alone=True,
    ),
    LlamaPythonic(
        "llama-pythonic",
        "Llama 3.2 (1B, 3B), Llama 4, ToolACE",
        marks=("[", "(", ")]"),
        also=("<|python_tag|>", "<|python_start|>", "<|python_end|>"),
        around=("[", ", ", "]"),
        alone=True,
    ),
    JsonList(
        "mistral-v3",
        "Mistral 7B v0.3, Mixtral, Nemo, Mistral Large 2, Mistral Small 3",
        marks=("[TOOL_CALLS]", '"arguments"'),
        closes=("[ARGS]",),
        call='{"name": %(quoted)s, "arguments": %(arguments)s, "id": "call%(number)05d"}',
        around=("[TOOL_CALLS] [", ", ", "]"),
        told='[TOOL_CALLS] [{"name": "…", "arguments": {…}}]',
        listing=_MISTRALS,
    ),
    Mistral(
        "mistral-v11",
        "Mistral Small 3.2, Mistral Medium 3",
        call="[TOOL_CALLS]%(name)s[CALL_ID]call%(number)05d[ARGS]%(arguments)s",
        listing=_MISTRALS,
    ),
    Mistral(
        "mistral-v13",
        "Magistral 2507, Devstral, Mistral Medium 3.1",
        also=("[CALL_ID]",),
        call="[TOOL_CALLS]%(name)s[ARGS]%(arguments)s",
        listing=_MISTRALS,
    ),
    _deepseek(
        "deepseek-v3",
        "DeepSeek V3, DeepSeek R1 and what was distilled from it",
        "function<｜tool▁sep｜>%(name)s\n```json\n%(arguments)s\n```",
        marks=("function<｜tool▁sep｜>", "```json"),
        told="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name, the arguments as a ```json block,"
        " <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    _deepseek("deepseek-v3.1", "DeepSeek V3.1", "%(name)s<｜tool▁sep｜>%(arguments)s", marks=("<｜tool▁sep｜>",)),
    _invoked("deepseek-v3.2", "DeepSeek V3.2", "｜DSML｜", "function_calls", ' string="%(is_text)s"'),
    Kimi(
        "kimi-k2",
        "Kimi K2",
        closes=(
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ),
        call="<|tool_call_begin|>functions.%(name)s:%(number)d<|tool_call_argument_begin|>%(arguments)s<|tool_call_end|>",
        around=("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    ),
    Harmony(
        "harmony",
        "gpt-oss",
        marks=("<|channel|>", "to=functions.", "<|message|>"),
        also=thoughts.HARMONY,
        call="<|channel|>commentary to=functions.%(name)s <|constrain|>json<|message|>%(arguments)s<|call|>",
        around=("", "<|start|>assistant", ""),
        frames=True,
    ),
    Gemma4(
        "gemma4",
        "Gemma 4, DiffusionGemma, FunctionGemma",
        marks=("<|tool_call>", "call:", "<tool_call|>"),
        also=('<|"|>', "<|tool_response>"),
        call="<|tool_call>call:%(name)s%(arguments)s<tool_call|>",
        sample='{key:<|"|>text<|"|>,other:3}',
    ),
    Cohere(
        "cohere",
        "Command R7B, Command A",
        call='{"tool_call_id": "%(number)d", "tool_name": %(quoted)s, "parameters": %(arguments)s}',
        around=("<|START_ACTION|>[", ", ", "]<|END_ACTION|>"),
    ),
    PythonBlock(
        "lfm2",
        "LFM2, LFM2.5",
        around=("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        listing=("List of tools: [", "]"),
    ),
    JsonList(
        "nemotron",
        "Nemotron Nano v2, Llama 3.3 Nemotron",
        call=_CALL,
        around=("<TOOLCALL>[", ", ", "]</TOOLCALL>"),
        listing=("<AVAILABLE_TOOLS>\n", "\n</AVAILABLE_TOOLS>"),
    ),
    JsonList(
        "phi4",
        "Phi-4-mini, Granite 3",
        marks=("<|tool_call|>", '"arguments"'),
        also=("<|/tool_call|>",),
        closes=("<|/tool_call|>",),
        call=_CALL,
        around=("<|tool_call|>[", ", ", "]<|/tool_call|>"),
        listing=("<|tool|>\n", "\n<|/tool|>"),
    ),
    _qwen("seed", "Seed-OSS", "seed:tool_call"),
    _invoked("minimax", "MiniMax M2", "", "minimax:tool_call"),
    _invoked(
        "muse", "Muse Glimmer", "atem:", "function_calls", "", ("<|start|>", "<|message|>", "<|eom|>"), Muse, True
    ),
    PythonBlock(
        "olmo3",
        "OLMo 3",
        around=("<function_calls>\n", "\n", "\n</function_calls>"),
        listing=("<functions>\n", "\n</functions>"),
    ),
    Tags(
        "tags",
        "Search-R1, ZeroSearch, R1-Searcher",
        call="<%(name)s>%(arguments)s</%(name)s>",
        around=("", "\n", ""),
        told="<search>words</search>, a tag with the tool's name around its text (around a JSON object, if it takes"
        " more)",
    ),
)

DIALECTS: dict[str, Dialect] = {each.name: each for each in _ALL}
"""Name -> dialect."""
