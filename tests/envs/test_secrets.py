"""What looks like a key or a password is masked in texts and in tables, and what only reads like it is not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from marft_envs.records.secrets import masked

R = "Zx81qLm2Vt9RkD4sWc7B"
"""What is random in the values below, all of them made up."""
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
KEY = "PRIVATE " + "KEY"
B64 = "YXBwOlp4ODFxTG0y"


def block(kind: str, suffix: str = "") -> str:
    return f"-----BEGIN {kind}{suffix}-----\n{R}\n{R}\n-----END {kind}{suffix}-----"


SECRETS = [  # text, what must be gone
    *((f"my key: {prefix}{R}{R} ok", R) for prefix in (
        "sk-", "sk-proj-", "sk-ant-api03-", "sk-or-v1-", "sk_" + "live_", "rk_" + "live_", "pk_" + "test_", "gsk_", "xai-",
        "pplx-", "r8_", "ghp_", "gho_", "ghs_", "github_" + "pat_", "glpat-", "gldt-", "xoxb-", "xoxp-", "xapp-1-", "npm_",
        "pypi-", "hf_", "SG.abcdefghij.", "whsec_", "ya29.", "GOCSPX-", "dop_v1_", "doo_v1_", "hvs.", "shpat_", "sq0atp-",
        "rubygems_", "dckr_pat_", "sntrys_", "glsa_", "PMAK-", "lin_api_", "figd_", "sbp_", "nvapi-", "lsv2_pt_", "tskey-auth-",
        "AIza", "EAAA", "rzp_" + "live_", "ATATT",
    )),
    *((f"{prefix}{HEX} ", HEX) for prefix in ("dapi", "key-", "pul-", "secret_", "tgp_v1_")),
    ("AKIA" + "ABCDEFGH23456789", "ABCDEFGH"), ("ASIA" + "ABCDEFGH23456789.", "ABCDEFGH"),
    (f"{HEX}-us12", HEX), (f"123456789:AA{R}{R}", R), (f"AGE-SECRET-KEY-1{R}{R}", R), (f"eyJhbGciOiJI.{R}.{R}", R),
    (f"https://hooks.slack.com/services/T0/B0/{R}", R), (f"https://discord.com/api/webhooks/12345/{R}", R),
    (block(KEY), R), (block("RSA " + KEY), R), (block("OPENSSH " + KEY), R), (block("PGP " + KEY, " BLOCK"), R),
    (block("EC " + KEY)[:60], R), (json.dumps({"k": block("ENCRYPTED " + KEY)}), R),
    (f"Authorization: Basic {B64}", B64), (f"Authorization: Token {R}", R), ("Authorization: Bearer abc", "abc"),
    (f"authorization:  Bearer  {R}", R), (f'Authorization: Digest username="u", response="{HEX}"', HEX),
    (f"Authorization: AWS4-HMAC-SHA256 Credential=u/x, Signature={HEX}", HEX), (f"Proxy-Authorization: basic {B64}", B64),
    (f"curl -H 'Authorization: ApiKey {R}' http://h", R), (f"Authorization: {R}", R), ("sent Bearer ab12", "ab12"),
    (f'{{"Authorization": "Bearer {R}"}}', R), (f"Basic {B64}==", B64), (f"Bearer  {R}", R),
    ("postgres://app:hunter2@db/x", "hunter2"), ("redis://:hun@ter2@h:6379", "ter2"), (f"https://{R}@h/x.git", R),
    ("amqp://u:p%40ss@h", "p%40ss"), ("mongodb+srv://u:hunter2@h", "hunter2"),
    (f"GET /a?access_token={R}&x=1", R), (f"/a?key={R}", R), (f"/a?x=1&sig={R}%3D", R), (f"?X-Amz-Signature={HEX}", HEX),
    (f"?api_key={R}", R), (f"wss://h/?token={R}#a", R), ("/cb?x=1&client_secret=abc", "abc"),
    ("DB_PASS=hunter2", "hunter2"), ("HF_TOKEN=abc", "abc"), ("export API_KEY='a b, c'", "a b"), ("PGPASSWORD=x9 psql", "x9"),
    ("MYSQL_PWD=hunter2", "hunter2"), ("SECRET_KEY=swordfish", "swordfish"), ("x-api-key: abcdef", "abcdef"),
    (f"AccountName=a;AccountKey={R}==;Endpoint=x", R), ("Server=x;User=y;Password=a,b(c;", "a,b"), ("Pwd=p&ss9;", "ss9"),
    ("SharedAccessKey=abc=", "abc"), ("aws_secret_access_key = wJalr/XUtn", "XUtn"), ("curl -u app:hunter2 h", "hunter2"),
    ("curl --user 'app:hun ter2'", "hun"), ("tool --password hunter2 -v", "hunter2"), ("x --api-key abc", "abc"),
    ("mysql -h db -uroot -phunter2", "hunter2"), ("sshpass -p hunter2 ssh", "hunter2"), ("machine h login u password hunter2", "hunter2"),
    ("ALTER USER a IDENTIFIED BY 'hunter2'", "hunter2"), ("my password is hunter2.", "hunter2"),
    ("password: abc", "abc"), ("passwd=1", "=1"), ('password = "correct horse, battery"', "horse"), ("pw: abc", "abc"),
    ("Password: correct horse battery", "horse"), ("passphrase: 'it\\'s mine'", "mine"), ("**Password:** swordfish", "fish"),
    ('{"passwd": "a\\"b c"}', "b c"), ('{\\"secret\\": \\"a b\\", \\"x\\": 1}', "a b"), ("{'pwd': 'hunter2'}", "hunter2"),
    ('{"refresh_token": "abc"}', "abc"), ('{"clientSecret": "abc"}', "abc"), ('{"dbPass":"abc"}', "abc"), ("token: abc", "abc"),
    (f"token: {R}", R), ("secret_value=abc", "abc"), ("API_KEY_2=abc", "abc"), ('API_KEY: str = "abc"', "abc"),
    ("<password>a b</password>", "a b"), ('{"name": "api_key", "value": "abc"}', "abc"), ("credentials: u/9x", "9x"),
    ("Cookie: sid=abc; theme=dark", "abc"), ("Set-Cookie: sid=abc; Path=/", "abc"), ("csrf_token=abc", "abc"), ("signature=9ab", "9ab"),
    ("encryption-key: 9ab", "9ab"), ("password=b'hunter2'", "hunter2"), ("secret: `ab cd`", "ab cd"), ("passwordless? password=ab.", "ab"),
]  # fmt: skip

HARMLESS = [
    "the secret: everything", "sk-learn-based-classifier-x", "token count: 12", "max_tokens: 100", "key: value", "sort_key=name",
    "The task-oriented agent said: 1 + 1 = 2, tokens: 12345678, sk-8 and the word password, then ask-me.",
    "token_count: 5, token_type: x, password_policy: strict, secret_name=db", "Basic understanding of basic programming",
    "a bearer of good news, the bearer token is missing", "Password: must have 8 characters", "the compass: north, bypass=yes",
    "PWD=/srv/me", "pass: 12, fail: 3", "secretary: Anna", "git clone ssh://git@host/x", "docker run -u 1000:1000 x",
    "password = getpass.getpass()", "token = tokens[0]", "api_key=os.environ['KEY']", "password=${DB_PASS}", "token: <your token>",
    "def f(password: str, token: str | None = None) -> None: ...", "https://example.com:443/@scope/pkg?page=2&sort=key",
    "signature: get(user, id)", "I like cookies: they are sweet", "authorization: required", "f(token=token, secret=self.secret)",
    "primary_key: id, public_key: shown, foreign_key=user_id", "passport: lost; passenger: two", "--max-tokens 100 --token-limit 5",
    '{"type": "password", "required": ["password", "token"]}', "BEGIN PUBLIC KEY is a line", "https://h/a?page=2&monkey=3", "***",
]  # fmt: skip


@pytest.mark.parametrize(("text", "gone"), SECRETS)
def test_secrets_are_masked(text: str, gone: str) -> None:
    assert gone in text
    hidden = masked({"a": [text]})["a"][0]
    assert "***" in hidden and gone not in hidden, hidden
    assert gone not in masked(f"It said:\n{text}\nAnd then 2 lines.\n")
    assert gone not in json.dumps(masked(json.dumps({"log": text})))
    assert masked(hidden) == hidden


@pytest.mark.parametrize("text", HARMLESS)
def test_words_are_not_masked(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"api_key": "a b"}, {"api_key": "***"}),
        ({"headers": {"X-Api-Key": "abc", "Cookie": "a=b", "Accept": "x"}}, {"headers": {"X-Api-Key": "***", "Cookie": "***", "Accept": "x"}}),
        ({"password": 1234, "token": 12, "max_tokens": 5}, {"password": "***", "token": 12, "max_tokens": 5}),
        ({"secrets": {"a": ["x"], "b": {"c": "y"}}}, {"secrets": {"a": ["***"], "b": {"c": "***"}}}),
        ({"password": None, "token": True, "secret": "${X}"}, {"password": None, "token": True, "secret": "${X}"}),
        ({"ghp_" + R: 1}, {"***": 1}),
        ([{"name": "Authorization", "value": "abc"}, {"name": "x", "value": "abc"}],
         [{"name": "Authorization", "value": "***"}, {"name": "x", "value": "abc"}]),
        ({"properties": {"password": {"type": "string", "description": "Yours.", "default": "abc"}}, "required": ["password"]},
         {"properties": {"password": {"type": "string", "description": "Yours.", "default": "***"}}, "required": ["password"]}),
    ],
)  # fmt: skip
def test_what_stands_under_the_name_of_a_secret(table: Any, expected: Any) -> None:
    assert masked(table) == expected


def test_long_texts_take_no_long_time() -> None:
    texts = (
        "a" * 200_000, "password='" * 20_000, "token: " * 30_000, "://" * 50_000, "-----BEGIN " * 9_000, "eyJ" * 50_000,
        "&sig=" * 9_000,
    )  # fmt: skip
    for text in texts:
        begun = time.perf_counter()
        masked(text)
        assert time.perf_counter() - begun < 10, text[:20]
