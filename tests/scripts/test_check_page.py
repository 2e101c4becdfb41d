"""What the check of the page says where it cannot be made."""

import sys

import check_page
import pytest


def told(capsys):
    with pytest.raises(SystemExit) as ended:
        check_page.needed()
    return ended.value.code, capsys.readouterr().err


def test_without_a_browser_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    code, said = told(capsys)
    assert code == 2
    assert "install Debian's package chromium" in said


def test_without_playwright_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    browser = tmp_path / "chromium"
    browser.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "playwright", None)
    code, said = told(capsys)
    assert code == 2
    assert "pip install playwright" in said


def test_what_is_wrong_is_raised_in_words():
    check_page.expect(True, "never seen")
    with pytest.raises(check_page.WrongError, match="it moved"):
        check_page.expect(False, "it moved")
