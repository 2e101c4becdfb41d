"""The check of the page names the packages that it lacks."""

import sys

import check_page
import pytest


@pytest.mark.parametrize(
    ("browser", "problem"),
    [(False, "install Debian's package chromium"), (True, "pip install playwright")],
)
def test_without_a_browser_or_playwright_the_error_names_the_package_to_install(
    browser, problem, monkeypatch, tmp_path, refusal_of
):
    if browser:
        (tmp_path / "chromium").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "playwright", None)
    assert problem in refusal_of(check_page, main=check_page.needed)


def test_a_failed_check_is_raised_with_its_message():
    check_page.expect(True, "never seen")
    with pytest.raises(check_page.WrongError, match="it moved"):
        check_page.expect(False, "it moved")
