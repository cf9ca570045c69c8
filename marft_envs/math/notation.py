"""Tables of mathematical notation: what ``canonical`` rewrites and what ``parse`` knows."""

from __future__ import annotations

UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "·": "*", "⋅": "*", "×": "*", "∗": "*", "÷": "/", "∕": "/",
        "√": "\\sqrt ", "≤": "≤", "≥": "≥", "⩽": "≤", "⩾": "≥", "²": "^2", "³": "^3", "º": "°", "∘": "°",
        "½": "\\frac12 ", "¼": "\\frac14 ", "¾": "\\frac34 ", "’": "'", "′": "'", "“": '"', "”": '"',
        "，": ",", "；": ";", "：": ":", "。": ".", "、": ",", "…": "\\ldots ", "∣": "|", "€": "", "£": "", "¥": "",
        "\u200b": "", "\ufeff": "", "\u2060": "",
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
    **dict.fromkeys(("bf", "rm", "it", "sf", "tt"), " "),
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

UNITS = {
    alias: name
    for name, aliases in {
        "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "m meter metre",
        "km": "km kilometer kilometre", "in": "in inch inche", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile",
        "mg": "mg milligram", "g": "g gram", "kg": "kg kilogram", "lb": "lb lbs pound", "oz": "oz ounce", "ton": "ton",
        "ms": "ms millisecond", "s": "s sec second", "min": "min minute", "h": "h hr hour", "day": "day",
        "week": "week", "month": "month", "year": "year yr", "ml": "ml mL milliliter millilitre",
        "l": "l L liter litre", "gal": "gal gallon", "usd": "dollar usd USD buck", "cent": "cent", "eur": "euro",
        "unit": "unit", "mph": "mph", "kmh": "kph kmh", "hz": "hz Hz", "n": "newton", "j": "joule", "w": "watt",
        "v": "volt", "rad": "radian rad", "people": "people person", "point": "point", "time": "time",
    }.items()
    for alias in aliases.split()
}  # fmt: skip
"""Spelling of a unit (singular) -> its name."""

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
    "underline",
))  # fmt: skip
"""Commands that make another name of a name."""
