"""The terminals of Lark's `common` library, by what its documentation says of them."""

_EXPONENT = r"[eE][+-]?\d+"
_DECIMAL = r"(?:\d+\.\d*|\.\d+)"
_FLOAT = rf"(?:{_DECIMAL}(?:{_EXPONENT})?|\d+{_EXPONENT})"
COMMON = {
    "DIGIT": r"\d",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": r"\d+",
    "SIGNED_INT": r"[+-]?\d+",
    "DECIMAL": _DECIMAL,
    "_EXP": _EXPONENT,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": rf"[+-]?{_FLOAT}",
    "NUMBER": rf"(?:{_FLOAT}|\d+)",
    "SIGNED_NUMBER": rf"[+-]?(?:{_FLOAT}|\d+)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*(?:[^*]|\*+[^*\/])*\*+\/",
    "SQL_COMMENT": r"--[^\n]*",
}
