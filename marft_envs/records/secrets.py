"""Masks what looks like a key or a password, in texts and in tables, before others' words are written or shown.

The rules are data: how makers write their keys, what stands around a secret, and names that stand before one. It is a
net with holes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

_KEYS = (
    r"sk-(?=[\w-]*\d)(?=[\w-]*[a-z0-9]{12}|[\w-]{40})[\w-]{16,}|sk-ant-[\w-]{16,}",
    r"[prsw]k_(?:live|test|prod)_\w{8,}|whsec_[\w+/=]{8,}|pplx-\w{16,}|gsk_\w{16,}|xai-\w{16,}|r8_\w{16,}|tgp_v\d_\w{16,}",
    r"gh[pousr]_\w{16,}|github_pat_\w{16,}|gl[a-z]{2,6}-[\w.-]{16,}|ATBB\w{16,}|ATATT[\w=-]{16,}|bkua_\w{16,}",
    r"xox[a-z]-[\w-]{8,}|xapp-[\w-]{10,}|SG\.[\w-]{8,}\.[\w-]{8,}|key-[0-9a-f]{32}|[0-9a-f]{32}-us\d{1,2}\b",
    r"hf_\w{16,}|npm_\w{16,}|pypi-[\w-]{16,}|rubygems_\w{16,}|dckr_[po]at_[\w-]{10,}|oy2[a-z0-9]{43}|CLOJARS_\w{20,}",
    r"(?-i:A[BCKS]IA|AROA|AIDA|AGPA)[A-Z0-9]{16}\b|AIza[\w-]{30,}|ya29\.[\w-]{8,}|1//0[\w-]{20,}|GOCSPX-[\w-]{10,}",
    r"do[opr]_v1_\w{16,}|dapi[0-9a-f]{16,}(?:-\d)?|hv[sbr]\.[\w-]{16,}|pul-[0-9a-f]{16,}|tskey-\w+-[\w-]{10,}",
    r"shp(?:at|ca|pa|ss)_\w{16,}|sq0[a-z]{3}-[\w-]{16,}|EAAA[\w-]{30,}|rzp_(?:live|test)_\w{8,}|FLW\w+_TEST-[\w-]{10,}",
    r"sntrys_[\w+/=]{16,}|gl(?:sa|c)_[\w+/=]{16,}|NRAK-\w{16,}|PMAK-[\w-]{16,}|lin_api_\w{16,}|secret_\w{32,}|ntn_\w{20,}",
    r"figd_[\w-]{16,}|pscale_\w+_[\w.-]{16,}|sb[ps]_\w{16,}|sb_secret_\w{8,}|EZ[AT]K\w{16,}|nvapi-[\w-]{16,}|lsv2_\w{16,}",
    r"AGE-SECRET-KEY-1\w{16,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)*|\d{8,10}:AA[\w-]{32,}|[MNO][\w-]{23,}\.[\w-]{6}\.[\w-]{27,}",
    r"hooks\.slack\.com/\w+/[\w/+-]+|discord(?:app)?\.com/api/webhooks/\d+/[\w-]+|[\w-]+\.webhook\.office\.com/[\w@/-]+",
)
"""Keys as their makers write them; a prefix and what is random."""
_BLOCK = r"-{4,5} ?BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}.*?(?:-{4,5} ?END [A-Z0-9 ]*KEY(?: BLOCK)? ?-{4,5}|\Z)"
_NO = r"(?!(?:is|was|are|must|should|may|and|or|in|of|for|with|has|from|to|not|required|missing|invalid|authenti\w+)\b)"
_OPEN = r"[\"'`\\\]*]*\s*[:=]\s*[\"'`\\]*"
_SHAPES = (
    rf"(authorization{_OPEN})(?:digest|oauth|hawk|signature|aws4[\w-]*)\s[^\n]+",
    rf"(authorization{_OPEN}(?:basic|bearer|token|negotiate|ntlm|jwt|key|bot|ssws|splunk|api-?key)\s+){_NO}[^\s\"'`\\,;]+",
    r"(\bbearer\s+)(?=\S*\d|\S{16}|(?-i:\S*[a-z][A-Z]))[\w.~+/=-]{3,}",
    r"(\bbasic\s+)(?=\S*[\d=])[A-Za-z0-9+/]{8,}={0,2}(?!\w)",
    r"(\bdigest\s+)(?=username=)[^\n]+",
    rf"(\b(?:set-)?cookie2?{_OPEN})(?=[^\n]{{0,200}}?=)[^\n\"'`\\]+",
    r"(\b[a-z][a-z0-9+.-]*://[^\s/:@\"'<>]*:)[^\s/\"'<>]+(?=@)",
    r"(\b[a-z][a-z0-9+.-]*://)[^\s/:@\"'<>]{20,}(?=@)",
    r"([?&](?:key|sig|sign|auth|code|st)=)[^\s&\"'`#<>]+",
    r"(--(?:[a-z]+-)*(?:pass(?:word|wd|phrase)?|token|secret|credential|(?:api|access|secret)-?key)\s+)(?![-$<{])\S+",
    r"((?:^|\s)(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"'$]+:)(?!\d+(?:\s|$))[^\s\"'$]+",
    r"(\bsshpass\s+-p\s*|\bmysql\w*\s[^\n|;]{0,200}?\s-p(?=[^\s-])|\bidentified\s+by\s+[\"']|\blogin\s+\S+\s+password\s+)"
    r"[^\s\"']+",
    r"(\bpass(?:word|code|phrase|wd)\s+(?:is|was)\s*:?\s+)(?:[\"'`][^\"'`\n]+|(?=\S*\d)(?=\S*[a-z])[^\s\"'`]+)",
    rf"((?:^|[\n\"'`])[ \t>*-]*(?:pass(?:word|phrase|wd)|pwd):[ \t]+)(?!\S+[(\[]){_NO}[^\s\"'`$<{{][^\s\"'`]* "
    r"[^\n\"'`]{1,60}(?=[\n\"'`]|\Z)",
)
"""A secret behind what stands in brackets, which stays."""
_SURE = r"passwo?r?d|passphrase|passcode|passwort|contrase\w{1,2}a|pwd|(?<![a-z])pw(?![a-z])"
_LIKELY = (
    r"secret|token(?!s)|credential|authorization|(?<![a-z])(?:auth|cookie|sig|pass)(?![a-z])|signature"
    r"|(?-i:(?<=[a-z])Pass(?![a-z]))|(?:api|access|secret|private|account|shared|master|client|encrypt\w*|sign\w*|auth|app"
    r"|application|consumer|service|storage|subscription|license|deploy|session|ssh|hmac|admin|root|functions|openai|write"
    r"|anthropic|gemini|azure|stripe)[-_. ]?key"
)
"""Names of passwords, which may be any word; names that mean something else, too."""
_OTHER = (
    r"(?![-_]?(?:counts?|limits?|types?|usage|names?|polic\w+|len(?:gth)?|ids?|budget|fields?|hints?|ur[il]s?|paths?|files?"
    r"|expir\w*|ttl|index|prob\w*|required|reset\w*|manager|store|rotat\w*|strength|algorithm|method|format|size|endpoint)(?![a-z]))"
)
"""What makes another name of one: token_count."""
_NAME = rf"(?:(?P<sure>{_SURE})|{_LIKELY}){_OTHER}(?:s|\d{{1,3}})?(?:[-_]\w{{1,20}}|(?-i:[A-Z]\w{{1,15}}))?"
_PAIR = (
    rf"(?is)(?P<name>{_NAME})(?P<sep>[\"'`\\\]*]*(?:\s*(?::=|=>|:\s*(?:str|string|bytes)\s*=|[:=])(?:\*\*(?!\*))?\s*(?:[rbfu]{{1,2}}(?=[\"']))?"
    r"|,\s*\\*[\"']value\\*[\"']\s*:\s*|>(?=[^<\n]+</)))(?:(?P<quote>\\*[\"'`])(?P<quoted>.{0,4000}?(?<!\\)(?=(?P=quote))|[^\n]*)"
    r"|(?P<bare>(?<=>)[^<\n]+(?=</)|(?:[^\s\"'`&;<>]|&(?![\w.-]+=)|;(?=\S)(?![\w ]+=))+))"
)
_KEPT = (
    r"\W*|\$[{(\w].*|%\w+%|<[^<>]*>|\{+[\w .]*\}+|(?:str|int|bool|bytes|any|none|null|true|false|string|number"
    r"|object|optional|required|secretstr|undefined|hidden|redacted|missing|invalid|incorrect|wrong|expired|unknown|input)\W*"
    r"|(?:os|process|env|self|config|settings|args|request|secrets)\.[\w.]+.*"
)
"""Values that are none: names of them, types, and what is masked already."""
_CODE = r"[a-z_][\w.]*[(\[].*"
_WORD = r"[A-Za-z]?[a-z_]*(?:\.[a-z_]+)*\W*|\d{1,5}\W*"
_ALONE = r"(?:^|[\n\"'`{,])[ \t]*[\w.-]*$"
_SCHEMA = {"type", "$ref", "anyOf", "oneOf", "allOf", "properties"}
_VALUES = {"default", "const", "enum", "example", "examples", "value"}
"""What says that a table defines a value; and what is one there."""
_MADE = rf"(?is)(?<![A-Za-z0-9])(?:{'|'.join(_KEYS)})|{_BLOCK}"
_SECRET_NAME = rf"(?is).*?{_NAME}"


def masked(value: Any) -> Any:
    """Returns a text with ``***`` for what looks like a secret; lists and tables with all their texts, keys too.

    In a table, what stands under the name of a secret is masked whole.
    """
    if isinstance(value, str):
        text = re.sub(_MADE, MASK, value)
        for shape in _SHAPES:
            text = re.sub(shape, rf"\g<1>{MASK}", text, flags=re.IGNORECASE)
        return re.sub(_PAIR, _pair, text)
    if isinstance(value, Mapping):
        named = next((value[key] for key in ("name", "key") if isinstance(value.get(key), str)), "")
        behind = {key: re.fullmatch(_SECRET_NAME, named if key == "value" else str(key)) for key in value}
        return {masked(key): _whole(one, behind[key]) for key, one in value.items()}
    return [masked(inner) for inner in value] if isinstance(value, list | tuple) else value


def _whole(value: Any, name: re.Match[str] | None) -> Any:
    """Masks what stands under a name in a table; all of it, if it is the name of a secret."""
    if name is None or value is None or isinstance(value, bool):
        return masked(value)
    if isinstance(value, Mapping):
        inner = value.keys() & _VALUES if value.keys() & _SCHEMA else value.keys()
        return {masked(key): _whole(one, name) if key in inner else masked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(one, name) for one in value]
    text = str(value)
    kept = _KEPT if name["sure"] else rf"{_KEPT}|{_CODE}|\d{{1,5}}"
    return value if re.fullmatch(rf"(?is){kept}", text) else MASK


def _pair(found: re.Match[str]) -> str:
    """Masks the value of a name and a value in a text, unless it is none of a secret."""
    name, sep, quote = found["name"], found["sep"], found["quote"] or ""
    value = found["quoted"] if quote else found["bare"]
    kept: Any = re.fullmatch(rf"(?is){_KEPT}{'' if quote and found['sure'] else f'|{_CODE}'}", value)
    if not quote:
        kept = kept or re.match(rf"(?!{_NO})|{re.escape(name)}\W*$", value, re.IGNORECASE)
        kept = kept or ("pwd" in name.lower() and value[:1] in "/~")
    if not (kept or quote or found["sure"] or sep == "=") and re.fullmatch(_WORD, value):
        before = found.string[max(0, found.start() - 40) : found.start()]
        alone = re.search(_ALONE, before) and found.string[found.end() : found.end() + 1] in "\n\"'`}"
        kept = value[:1].isdigit() or not (alone or re.search(r"\w[-_]$", before) or re.search("[-_]", name))
    end = "" if quote else value[len(value.rstrip(",.)}]")) :]
    return found[0] if kept else f"{name}{sep}{quote}{MASK}{end}"
