"""Constraints that llguidance compiles too, and the texts that are not compared.

Where the two differ on purpose, a pattern matches those texts, and a comment names who decides it.
"""

REGEXES = r"""
a
abc
[a-z]+[0-9]
a.b
b|cd
\d{2}
\w+
\s
\S+
\D\W
é+
[a-f]*
[^x]
[^a-y\n]{1,3}
(ab|a)(bc|c)?
(a|ab)(c|bcd)(d*)
a{0}b
a{0,3}
a{2,}
(ab){2,4}
([a-c]{1,2}-){2}x
a?b?c?d?
(a?){3}
(a*)*
(a+)+b
((a|b)*c|d)*
x*?y+?z??
\d{4}-\d{2}-\d{2}
(19|20)\d\d-(0[1-9]|1[0-2])
[+-]?\d+(\.\d+)?([eE][+-]?\d+)?
(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}
[\w.+-]+@[\w-]+(\.[\w-]+)+
https?://[\w.-]+(:\d{1,5})?(/[\w./%~-]*)?
[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})
"(\\["\\/bfnrt]|\\u[0-9a-f]{4}|[^"\\])*"
\{"a": \[\d+(, \d+)*\]\}
[äöüÄÖÜß]+
[\u03b1-\u03c9]{2,5}
[\u4e00-\u9fff]+
日本(語|人)?
😀{1,2}|é
[😀-😎]
[é-日]
.{1,3}
.*
(.|\n)*
[^]
[\s\S]{0,4}
[\d\s]+
[^\d\s]+
[\]\[\\-]+
a{3}b{3}c{3}
(a{1,3}b{0,2}){1,2}
(foo|foobar|foobaz)(bar)?
(true|false|null)
(mage|magenta|mag)( of the (order|ordeal))?
^start.*end$
^[A-Z]{2}-\d+$
\x41\u0042\t\n
[a-z]{1,100}
[ab]{50,60}
(a|b|c|d|e){10}
(?:ab|cd)+(?:ef)?
\.\*\+\?\(\)\|
[a-zA-Z_][a-zA-Z0-9_]{0,31}
(\+\d{1,3} )?\(?\d{3}\)?[ -]\d{3}-\d{4}
""".strip("\n").split("\n")

GRAMMARS = [
    'start: "a" | "b" start',
    'start: "(" start ")" | "x"',
    'start: "(" start? ")" start?',
    'start: item ("," item)*\nitem: NAME | NUMBER\nNAME: /[a-z]+/\nNUMBER: /[0-9]+/',
    'start: term (("+" | "-") term)*\nterm: factor (("*" | "/") factor)*\n'
    'factor: NUMBER | "(" start ")"\nNUMBER: /[0-9]+(\\.[0-9]+)?/',
    'start: start "+" term | term\nterm: term "*" atom | atom\natom: /[a-z]/ | "(" start ")"',
    'start: a b\na: "x"*\nb: "x" "y"',
    'start: pair*\npair: KEY "=" value ";"\nKEY: /[a-z]{1,8}/\n'
    'value: STRING | "[" value ("," value)* "]"\nSTRING: /"[^"\\n]*"/',
    'start: "a"~2 "b"~1..3 ["c"] "d"?',
    'start: "ab"{2} "c"{1,} "d"{,2}',
    'start: A B*\nA: "x" | /y[^\\n]/\nB: A "1".."3"',
    'start: "select"i " " /[a-z]+/',
    "start: T\nT: /[a-z]+/ & ~/if|else/",
    "start: T+\nT: ~/a*/ & /[ab]{2}/",
    "start: T\nT: /a/ /b/ & /ab|c/ | /d/",
    "start: T\nT: /[a-c \\n]*/ & ~/[a-c \\n]*\\n\\n[a-c \\n]*/",
    'start: T "."\nT: /[a-z]{3,6}/ & /[^q]*/ & ~/[a-z]*xx[a-z]*/',
    '%ignore / +/\nstart: ("a" "b"? C)+\nC: "c" "c"',
    '%import common.INT\nstart: "(" start ")" | INT ("+" INT)*',
    '%ignore /[ \\t]+/\nstart: stmt+\nstmt: NAME ":=" NAME ";"\nNAME: /[a-z]+/',
    '%ignore /#[^\\n]*\\n/\n%ignore " "\nstart: ("x" ";")*',
    '%import common.SIGNED_NUMBER\nstart: SIGNED_NUMBER | "[" (start ("," start)*)? "]"',
    '%import common.CNAME\nstart: CNAME ("." CNAME)*',
    '%import common.HEXDIGIT\nstart: "#" HEXDIGIT~6',
    "%import common.FLOAT\nstart: FLOAT",
    '%import common.NEWLINE\nstart: ("- " /[^\\n]+/ NEWLINE)+',
    "start: name /[a-z]+/\nname[lazy]: /[ab]+c/",
    'start: name "!"\nname[suffix="bc"]: /[a-c]*/',
    'start: "a" start "a" | "b" start "b" | "c"',
    'start: as bs | cs\nas: "a" as |\nbs: "b" bs | "b"\ncs: "c"+',
    'start: %json {"type": "integer", "minimum": 3, "maximum": 17} "!"',
    'start: "日本" /[語人]/ "é"*',
    'start: x y z\nx: "a"?\ny: "b"?\nz: "c"?',
    'start: %regex {"substring_chars": "abcab"} "."',
    'start: ("a" | ("b" "c" | "d")+ "e"?)~1..2',
    '?start: product | start "+" product -> add\n?product: NUM | product "*" NUM -> mul\n'
    'NUM: DIGIT+\nDIGIT: "0".."9"',
]

# Its lexer is greedy: a terminal that could go on does. In Lark's dynamic lexer, and here, any text
# of a terminal may stand.
GREEDY = [
    ('start: a a\na: "x" | "xy" | "y"', "xy"),
    ('start: "select"i /[a-z]+/ "from"i', "Selectafrom"),
    ('start: a | b\na: "x" a "y" | "x" "y"\nb: "x" b "yy" | "x" "yy"', "xxyy"),
    ('%ignore / +/\nstart: "a" "b"? C\nC: "c" "c"', "acc "),  # nor does it skip at the very end
]

INTEGER, NUMBER, STRING, BOOLEAN, NULL = (
    {"type": name} for name in ("integer", "number", "string", "boolean", "null")
)
MINUS_ZERO = r"-0?$"  # is zero, by RFC 8259: it has that only where a bound is negative
EXPONENT = r"\d[eE][^,\]}]*$"  # ours follow one digit, and within a double; its bounds have none
LAST_ZEROS = r"\.\d*0$"  # the same number as without: its bounds and multiples have none
NOT_READ = r"\d[tz]|\d{10}"  # by every reader: small letters of times, more than nine digits
ESCAPE = r"\\"  # any character may be escaped: with a pattern, a format or an enum, it has no \u
RAW = r"\x7F|\\/"  # RFC 8259 has DEL as it is, and an escaped slash
TWICE = r'"([^"]*)"\s*:.*"\1"[^"]*$'  # keys: it does not look whether an object has them
LINE_ENDS = "\u2028|\u2029"  # ECMA-262: `.` is none of them
NO_DAY = r'"0000|-02-29'  # it knows no leap years; ours have no year 0
LEAP_SECOND = r"\d\d:\d\d:6"  # RFC 3339: at the end of a UTC day only


def closed(properties, *required, **more):
    """Without `required`, all are."""
    named = {"properties": properties, "required": [*(required or properties)]}
    return {"type": "object", **named, "additionalProperties": False, **more}


def string(**more):
    return {"type": "string", **more}


def numbers(low, high, **more):
    return {"type": "number", "minimum": low, "maximum": high, **more}


def integers(low, high, **more):
    return numbers(low, high, **more) | INTEGER


LINKED = closed({"v": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/t"}, NULL]}})
TAGGED = [closed({"t": {"const": "a"}, "x": INTEGER}), closed({"t": {"const": "b"}, "y": BOOLEAN})]
SCHEMAS = [
    ({"const": "ok"}, ""),
    ({"const": 17}, ""),
    ({"const": [1, "a", None, {}, []]}, ""),
    ({"const": {"a": 1, "b": [True]}}, ""),
    ({"enum": ["red", "green", "blue"]}, ""),
    ({"enum": ["a", "ab", "abc", 1, 12, None, True]}, ""),
    ({"enum": ["é", "日本", '"q"', "back\\slash", "new\nline"]}, r"\\u"),
    ({"enum": [1.5, -2, 0, 100]}, ""),
    ({"type": "string", "enum": ["aa", "ac", "ab"], "pattern": "^ab|c$"}, ""),
    (NULL, ""),
    (BOOLEAN, ""),
    (INTEGER, ""),
    (NUMBER, EXPONENT),
    ({"type": "integer", "minimum": 0}, MINUS_ZERO),
    ({"type": "integer", "minimum": 1}, ""),
    ({"type": "integer", "maximum": -5}, ""),
    ({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 1000}, ""),
    (integers(-3, 40), ""),
    (integers(-12, 9), ""),
    (integers(-999, -77), ""),
    (integers(1000, 123456), ""),
    (integers(0, 100, multipleOf=5), MINUS_ZERO),
    ({"type": "integer", "multipleOf": 7}, MINUS_ZERO),
    (numbers(0, 1), MINUS_ZERO),
    (numbers(2, 3.5), LAST_ZEROS),
    (numbers(-1.5, 2.25), rf"{MINUS_ZERO}|{LAST_ZEROS}|^2\.2$"),  # it refuses 2.2
    (numbers(-0.05, 12.5), f"{MINUS_ZERO}|{LAST_ZEROS}"),
    ({"type": "number", "maximum": -10}, LAST_ZEROS),
    ({"type": "number", "minimum": 12.5}, LAST_ZEROS),
    ({"type": "number", "exclusiveMinimum": 0}, f"{EXPONENT}|{LAST_ZEROS}"),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, LAST_ZEROS),
    ({"type": "number", "multipleOf": 0.01}, rf"{MINUS_ZERO}|{LAST_ZEROS}|\d{{13}}"),  # a double's
    (STRING, RAW),
    (string(maxLength=5), RAW),
    (string(minLength=2, maxLength=4), RAW),
    (string(minLength=3), RAW),
    (string(pattern="^[A-Z]{2}-[0-9]+$"), ESCAPE),
    (string(pattern="ab"), f"{RAW}|{ESCAPE}"),
    (string(pattern="^a|b$"), f"{RAW}|{ESCAPE}"),
    (string(pattern="^.{2}$"), f"{RAW}|{ESCAPE}|{LINE_ENDS}"),
    (string(pattern="^\\S+$"), f"{RAW}|{ESCAPE}"),
    (string(pattern="^[^a-z]*$"), f"{RAW}|{ESCAPE}"),
    (string(pattern="^\\w[^a-z]$"), f"{RAW}|{ESCAPE}"),
    (string(pattern="^\\d{3}$"), ESCAPE),
    (string(pattern="^[a-z]+$", minLength=2, maxLength=6), ESCAPE),
    (string(pattern="^(red|green)( (dark|light))?$"), ESCAPE),
    (string(format="date"), f"{ESCAPE}|{NO_DAY}"),
    (string(format="time"), f"{ESCAPE}|{LEAP_SECOND}|{NOT_READ}"),
    (string(format="date-time"), f"{ESCAPE}|{NO_DAY}|{LEAP_SECOND}|{NOT_READ}"),
    (string(format="duration"), f"{ESCAPE}|{NOT_READ}"),
    (string(format="uuid"), ESCAPE),
    (string(format="ipv4"), ESCAPE),
    (string(format="ipv6"), rf"{ESCAPE}|\."),  # RFC 3986 lets an IPv4 address end each form
    (string(format="hostname"), rf"{ESCAPE}|--"),  # RFC 5890: an A-label is Punycode
    (string(format="uri"), ESCAPE),
    (string(format="email"), rf"{ESCAPE}|\[I|@.*\w{{40}}"),  # RFC 5321: [IPv6:...]; 63 in a label
    ({"type": "array", "items": INTEGER}, ""),
    ({"type": "array", "items": INTEGER, "minItems": 2}, ""),
    ({"type": "array", "items": BOOLEAN, "minItems": 1, "maxItems": 3}, ""),
    ({"type": "array", "maxItems": 0}, ""),
    ({"type": "array", "prefixItems": [STRING, INTEGER], "items": False}, RAW),
    ({"type": "array", "prefixItems": [BOOLEAN, INTEGER], "minItems": 2, "items": BOOLEAN}, ""),
    ({"type": "array", "items": {"type": "array", "items": NULL, "maxItems": 2}}, ""),
    ({"type": "array"}, f"{RAW}|{EXPONENT}|{TWICE}"),
    (closed({"a": INTEGER}), ""),
    (closed({"a": STRING, "b": BOOLEAN, "c": NULL}), RAW),
    (closed({"a": INTEGER, "b": INTEGER, "c": INTEGER}, "b"), ""),
    (closed({"a": INTEGER, "ab": INTEGER, "abc": INTEGER}, "abc"), ""),
    (closed({"a": INTEGER, "b": NULL}) | {"required": []}, ""),
    (closed({"a": INTEGER, "b": NULL}, minProperties=1) | {"required": []}, ""),
    (closed({"a": INTEGER, "b": NULL}, maxProperties=1) | {"required": []}, ""),
    (closed({"o": closed({"x": INTEGER, "y": NULL}), "l": {"type": "array", "items": NULL}}), ""),
    (closed({"a b": INTEGER, '"': BOOLEAN, "é": INTEGER}), r"\\u"),
    (closed({}), ""),
    (closed({"n": {"type": "array", "items": closed({"s": string(maxLength=2)})}}), RAW),
    ({"type": "object", "additionalProperties": INTEGER}, f"{RAW}|{TWICE}"),
    ({"type": "object", "additionalProperties": BOOLEAN, "maxProperties": 2}, f"{RAW}|{TWICE}"),
    (closed({"a": INTEGER, "b": NULL}, "b", additionalProperties=INTEGER), f"{RAW}|{TWICE}"),
    (closed({}, patternProperties={"^x": INTEGER, "^y": NULL}), f"{RAW}|{ESCAPE}|{TWICE}"),
    ({"type": ["string", "null"]}, RAW),
    ({"type": ["integer", "boolean"]}, ""),
    ({"type": ["array", "null"], "items": INTEGER}, ""),
    ({"anyOf": [INTEGER, STRING]}, RAW),
    ({"anyOf": TAGGED}, ""),
    ({"oneOf": TAGGED}, ""),
    ({"anyOf": [{"type": "integer", "maximum": 3}, integers(10, 99)]}, MINUS_ZERO),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 30}]}, ""),
    ({"allOf": [closed({"a": INTEGER}), {"properties": {"a": {"minimum": 5}}}]}, ""),
    ({"$defs": {"t": LINKED}, "$ref": "#/$defs/t"}, ""),
    ({"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}, ""),
]
BEGUN = ['"\\', '"\\u', '"\\ud83d', '"\\ud83d\\u', '"\\u00', '"\\ud83d\\ude00', '"\\u0001é', '"😀']
