"""Tables of mathematical notation: what ``canonical`` rewrites and what ``parse`` knows."""

from __future__ import annotations

from fractions import Fraction

WORD = "‹"
"""Marks a word that stood in ``\\text{}``: it is no product of variables."""

UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "·": "*", "⋅": "*", "×": "*", "∗": "*", "÷": "/", "∕": "/",
        "√": "\\sqrt ", "⩽": "≤", "⩾": "≥", "º": "°", "∘": "°", "∠": "\\angle ", "△": "\\triangle ",
        "’": "'", "′": "'", "“": '"', "”": '"', "٫": ".", "٬": ",", "،": ",", "؛": ";", "٪": "%",
        "，": ",", "；": ";", "：": ":", "。": ".", "、": ",", "…": "\\ldots ", "∣": "|", "¢": " cents",
        "\u200b": "", "\ufeff": "", "\u2060": "", "‹": "<", "⁄": "/",
    }
)  # fmt: skip

COMMANDS = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
    **dict.fromkeys(("le", "leq", "leqslant", "leqq"), "≤"),
    **dict.fromkeys(("ge", "geq", "geqslant", "geqq"), "≥"),
    **dict.fromkeys(("ne", "neq"), "≠"),
    **dict.fromkeys(("approx", "simeq", "doteq"), "≈"),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("mid", "vert", "lvert", "rvert"), "|"),
    **dict.fromkeys(("quad", "qquad", "displaystyle", "textstyle", "limits", "nolimits", "enspace", "thinspace"), " "),
    **dict.fromkeys(("bf", "rm", "it", "sf", "tt", "em", "bfseries", "itshape"), " "),
    **dict.fromkeys(("tiny", "scriptsize", "footnotesize", "small", "normalsize", "large", "Large", "LARGE", "huge",
                     "Huge"), " "),
    **dict.fromkeys(("big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr"), ""),
    **dict.fromkeys(("left", "right", "middle"), ""),
    **dict.fromkeys(("degree", "textdegree"), "°"),
    **dict.fromkeys(("langle", "lparen"), "("),
    **dict.fromkeys(("rangle", "rparen"), ")"),
    **dict.fromkeys(("land", "lor", "wedge", "vee"), ","),
    "lt": "<", "gt": ">", "in": "∈", "cup": "∪", "cap": "∩", "infty": "∞", "pm": "±", "mp": "∓", "div": "/",
    "pi": "π", "circ": "∘", "lbrace": "⦃", "rbrace": "⦄", "lbrack": "[", "rbrack": "]", "colon": ":", "prime": "'",
    "dots": "\\ldots", "cdots": "\\ldots", "varnothing": "\\emptyset", "percent": "%", "dollar": "",
}  # fmt: skip

_DIMENSIONS = {
    "length": "mm:1/1000 millimeter millimetre, cm:1/100 centimeter centimetre, dm:1/10 decimeter decimetre, "
    "m:1 meter metre, km:1000 kilometer kilometre, in:127/5000 inch, ft:381/1250 foot feet, yd:1143/1250 yard, "
    "mi:201168/125 mile",
    "mass": "mg:1/1000 milligram, g:1 gram gramme, kg:1000 kilogram kilo, oz:45359237/1600000 ounce, "
    "lb:45359237/100000 lbs pound",
    "time": "ms:1/1000 millisecond, s:1 sec second, min:60 minute, h:3600 hr hour, day:86400, week:604800",
    "month": "month:1, year:12 yr, decade:120, century:1200 centuries",
    "usd": "cent:1 penny pennies, usd:100 dollar USD buck",
    "liquid": "pint:1, quart:2, gal:8 gallon",
    **{name: f"{name}:1 {aliases}" for name, aliases in (
        ("ton", "tonne"), ("eur", "euro EUR"), ("gbp", "GBP"), ("yen", "JPY"), ("rupee", "INR Rs"), ("n", "N newton"),
        ("j", "J joule"), ("w", "W watt"), ("v", "V volt"), ("kw", "kW kilowatt"), ("kj", "kJ kilojoule"),
        ("pa", "Pa pascal"), ("ohm", "Ω"), ("ampere", "A amp"), ("kelvin", "K"), ("coulomb", "C"), ("celsius", "degC"),
        ("fahrenheit", "F degF"), ("rad", "radian"), ("mol", "mole"), ("cal", "calorie"), ("kcal", "kilocalorie"),
    )},
}  # fmt: skip
UNITS: dict[str, tuple[dict[str, int], Fraction]] = {
    alias: ({dimension: 1}, Fraction(factor))
    for dimension, units in _DIMENSIONS.items()
    for name, _, rest in (unit.strip().partition(":") for unit in units.split(","))
    for factor, *aliases in [rest.split()]
    for alias in (name, *aliases)
} | {
    **dict.fromkeys(("ml", "mL", "milliliter", "millilitre"), ({"length": 3}, Fraction(1, 10**6))),
    **dict.fromkeys(("l", "L", "liter", "litre"), ({"length": 3}, Fraction(1, 1000))),
    "mph": ({"length": 1, "time": -1}, Fraction(201168, 125 * 3600)),
    **dict.fromkeys(("kph", "kmh", "kmph"), ({"length": 1, "time": -1}, Fraction(1000, 3600))),
    **dict.fromkeys(("Hz", "hz", "hertz"), ({"time": -1}, Fraction(1))),
}
"""Spelling of a unit (singular) -> its dimensions, and its size in the first unit of size 1 of that dimension."""

CURRENCIES = {"\\$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees"}

MULTIPLIERS: dict[str, int | Fraction] = {
    "hundred": 100, "thousand": 1000, "k": 1000, "million": 10**6, "mn": 10**6, "billion": 10**9, "bn": 10**9,
    "trillion": 10**12, "quadrillion": 10**15, "lakh": 10**5, "crore": 10**7, "dozen": 12, "score": 20, "gross": 144,
    "百": 100, "千": 1000, "万": 10**4, "亿": 10**8, "萬": 10**4, "億": 10**8,
    **{f"{word}{end}": Fraction(1, below) for below, word in (
        (3, "third"), (5, "fifth"), (6, "sixth"), (7, "seventh"), (8, "eighth"), (9, "ninth"), (10, "tenth"),
        (100, "hundredth"), (1000, "thousandth"), (10**6, "millionth"), (10**9, "billionth"),
    ) for end in ("", "s")},
}  # fmt: skip
"""Words behind a number by which it is multiplied."""

MARKS = {
    word: name
    for name, words in {
        "am": "am", "pm": "pm", "bc": "bc bce", "ad": "ad ce",
        "north": "north northward northwards northern n", "south": "south southward southwards southern s",
        "east": "east eastward eastwards eastern e", "west": "west westward westwards western w",
        "northeast": "northeast ne", "northwest": "northwest nw", "southeast": "southeast se",
        "southwest": "southwest sw", "gain": "gain gains gained profit profits surplus", "debt": "debt deficit debit",
        "credit": "credit", "loss": "loss losses lost",
        "more": "more greater larger bigger", "less": "less fewer smaller",
        "up": "up upward upwards", "down": "down downward downwards", "above": "above over", "below": "below under",
        "increase": "increase increased", "decrease": "decrease decreased", "forward": "forward forwards",
        "backward": "backward backwards", "clockwise": "clockwise cw",
        "counterclockwise": "counterclockwise anticlockwise ccw", "negative": "negative minus", "positive": "positive",
        "not": "not no wrong false never incorrect without except", "deposit": "deposit", "withdrawal": "withdrawal",
        **{month[:3]: f"{month} {month[:3]}" for month in (
            "january", "february", "march", "april", "june", "july", "august", "september", "october",
            "november", "december",
        )},
    }.items()
    for word in words.split()
}  # fmt: skip
"""Words behind a number that change what it says -> one name for those that say the same."""

BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
         "eleven": 11, "twelve": 12, "sixteen": 16}  # fmt: skip

PLURALS = {
    "people": "person", "persons": "person", "men": "man", "women": "woman", "children": "child", "feet": "foot",
    "mice": "mouse", "geese": "goose", "teeth": "tooth", "halves": "half", "knives": "knife", "loaves": "loaf",
    "leaves": "leaf", "wolves": "wolf", "shelves": "shelf", "lives": "life",
}  # fmt: skip
FILLERS = frozenset((
    "of", "the", "a", "an", "in", "to", "at", "is", "are", "was", "were", "be", "there", "unit", "units", "total",
    "altogether", "all", "each", "per", "exactly", "about", "only", "approximately", "roughly", "due",
    "and",
))  # fmt: skip
"""Words that say nothing of a number."""
COUNTERS = "个只本支条张名位块件辆棵朵头匹把片颗粒袋箱盒瓶次"
"""Chinese words between a number and its noun."""

FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "exp", "ln", "log", "lg", "sqrt", "abs", "floor", "ceil",
))  # fmt: skip

SYMBOLS = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma",
    "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell", "hbar", "odot",
    "emptyset", "triangle", "angle", "partial", "star",
))  # fmt: skip
"""Commands that stand for a name, as a letter does."""

ACCENTS = frozenset((
    "bar", "hat", "vec", "dot", "ddot", "tilde", "overline", "widehat", "overrightarrow", "mathbb", "mathcal",
))  # fmt: skip
"""Commands that make another name of a name."""
