"""Unicode properties in patterns: the closed list of ECMA-262, by all of its names."""

import pytest
from readers import misread

from dlm.grammar import InvalidGrammarError, JsonSchema
from dlm.grammar.regex import automaton_of, property_

BINARY = """ASCII Any Assigned ASCII_Hex_Digit/AHex Alphabetic/Alpha Bidi_Control/Bidi_C
Bidi_Mirrored/Bidi_M Case_Ignorable/CI Cased Changes_When_Casefolded/CWCF
Changes_When_Casemapped/CWCM Changes_When_Lowercased/CWL Changes_When_NFKC_Casefolded/CWKCF
Changes_When_Titlecased/CWT Changes_When_Uppercased/CWU Dash Default_Ignorable_Code_Point/DI
Deprecated/Dep Diacritic/Dia Emoji Emoji_Component/EComp Emoji_Modifier/EMod
Emoji_Modifier_Base/EBase Emoji_Presentation/EPres Extended_Pictographic/ExtPict Extender/Ext
Grapheme_Base/Gr_Base Grapheme_Extend/Gr_Ext Hex_Digit/Hex IDS_Binary_Operator/IDSB
IDS_Trinary_Operator/IDST ID_Continue/IDC ID_Start/IDS Ideographic/Ideo Join_Control/Join_C
Logical_Order_Exception/LOE Lowercase/Lower Math Noncharacter_Code_Point/NChar
Pattern_Syntax/Pat_Syn Pattern_White_Space/Pat_WS Quotation_Mark/QMark Radical Regional_Indicator/RI
Sentence_Terminal/STerm Soft_Dotted/SD Terminal_Punctuation/Term Unified_Ideograph/UIdeo
Uppercase/Upper Variation_Selector/VS White_Space/space XID_Continue/XIDC XID_Start/XIDS"""
CATEGORIES = """Cased_Letter/LC Close_Punctuation/Pe Connector_Punctuation/Pc Control/Cc/cntrl
Currency_Symbol/Sc Dash_Punctuation/Pd Decimal_Number/Nd/digit Enclosing_Mark/Me
Final_Punctuation/Pf Format/Cf Initial_Punctuation/Pi Letter/L Letter_Number/Nl Line_Separator/Zl
Lowercase_Letter/Ll Mark/M/Combining_Mark Math_Symbol/Sm Modifier_Letter/Lm Modifier_Symbol/Sk
Nonspacing_Mark/Mn Number/N Open_Punctuation/Ps Other/C Other_Letter/Lo Other_Number/No
Other_Punctuation/Po Other_Symbol/So Paragraph_Separator/Zp Private_Use/Co Punctuation/P/punct
Separator/Z Space_Separator/Zs Spacing_Mark/Mc Symbol/S Titlecase_Letter/Lt Unassigned/Cn
Uppercase_Letter/Lu"""


@pytest.mark.parametrize("names", BINARY.split())
def test_every_binary_property_is_known_by_all_its_names(names: str):
    found = {property_(name) for name in names.split("/")}
    assert None not in found
    assert len(found) == 1
    (ranges,) = found
    assert ranges
    assert all(high < 0xD800 or low > 0xDFFF for low, high in ranges)


@pytest.mark.parametrize("names", CATEGORIES.split())
def test_every_general_category_is_known_by_all_its_names(names: str):
    ways = ("{}", "gc={}", "General_Category={}")
    found = {property_(way.format(name)) for way in ways for name in names.split("/")}
    assert None not in found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("pattern", "found", "refused"),
    [
        (r"^\p{Script=Han}+$", ["漢字", "㐀𠀀々"], ["", "かな", "a", "漢a"]),
        (r"^\p{sc=Hani}$", ["漢"], ["한"]),
        (r"^\p{Script=Greek}\P{sc=Grek}$", ["λa"], ["λμ", "aa"]),
        (r"^\p{Script_Extensions=Devanagari}$", ["\u0951", "क", "\u0964"], ["a"]),
        (r"^\p{scx=Deva}\P{Script=Deva}$", ["क\u0964"], ["कक"]),
        (r"^\p{Han}\p{Cyrillic}$", ["漢ж"], ["ж漢"]),  # as Rust and PCRE have it
        (r"^\p{Emoji}\p{Emoji_Presentation}$", ["1😀"], ["a😀", "😀1"]),
        (r"^\p{Extended_Pictographic}$", ["©"], ["1"]),
        (r"^[\p{Alphabetic}\p{White_Space}]+$", ["aé漢\u00a0\u0085\u2028ⓐ"], ["1", "_"]),
        (r"^\p{ID_Start}\p{ID_Continue}*$", ["aé_1", "漢"], ["1a", "_a", "a-"]),
        (r"^\p{Lowercase}\p{Uppercase}\p{Lt}$", ["aAǅ", "ªⒶǅ"], ["Aaǅ"]),
        (r"^\p{Hex_Digit}\p{AHex}$", ["\uff26f"], ["f\uff26", "gg"]),
        (r"^\p{RI}{2}$", ["🇩🇪"], ["de"]),
        (r"^\p{CWKCF}$", ["A", "ﬁ", "\u00ad", "ß"], ["a", "漢", "1"]),
        (r"^[^\P{Dash}]\P{Math}$", ["—a"], ["a—", "-+"]),
        (r"^\p{Ideo}\p{QMark}\p{Join_C}\p{VS}$", ["漢«\u200d\ufe0f"], ["漢a\u200d\ufe0f"]),
    ],
)
def test_a_property_matches_its_characters_and_no_others(
    pattern: str, found: list[str], refused: list[str]
):
    assert misread(automaton_of(pattern, whole=False).accepts, found, refused) == []


@pytest.mark.parametrize(
    "name",
    """Elvish Script= Script=Elvish sc=Lu gc=Han Emoji=Yes InBasicLatin Block=A RGI_Emoji alnum = L=
    Script=Han}|a Age=3.0 ^L""".split(),
)
def test_other_names_are_refused(name: str):
    assert property_(name) is None
    if "}" not in name:
        with pytest.raises(InvalidGrammarError, match="is no Unicode property of ECMA-262"):
            automaton_of(rf"\p{{{name}}}", whole=False)


def test_many_properties_take_counted_work():
    scripts = """Adlam Ahom Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi
    Braille Buginese Buhid Carian Chakma Cham Cherokee Coptic Cuneiform Cypriot Cyrillic Deseret
    Devanagari Duployan Elbasan Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gurmukhi
    Han Hangul Hanunoo Hatran Hebrew Hiragana Javanese Kaithi Kannada Katakana Kharoshthi Khmer
    Khojki Lao Latin Lepcha Limbu Lisu Lycian Lydian Mahajani Mandaic Manichaean Meroitic_Cursive
    Miao Modi Mongolian Mro Multani Myanmar""".split()
    few, many = (
        {"type": "string", "pattern": "|".join(rf"\p{{sc={name}}}" for name in names)}
        for names in (scripts[:10] * 9, scripts)
    )
    JsonSchema(few).rules(None)
    with pytest.raises(InvalidGrammarError, match="steps"):
        JsonSchema(many).rules(None)
