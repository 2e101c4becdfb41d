"""The snippets of grammar/README.md print what the page says."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

PAGE = Path(__file__).parents[2] / "grammar" / "README.md"
SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_one_schema_goes_through_all_its_forms_as_the_page_says():
    text = PAGE.read_text()
    snippets = SNIPPET.findall(text)
    assert len(snippets) == text.count("```python") == text.count("```text") > 4
    names = {}
    for code, printed in snippets:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(code, str(PAGE), "exec"), names)
        assert out.getvalue() == printed
