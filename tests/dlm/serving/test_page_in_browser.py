"""The server's page in a real browser, on wide and narrow screens, light and dark."""

import base64
import json
import re
import shutil
import time

import pytest
from block_models import SDAR, Oracle
from browser import chromium, opened
from exhaustive import by_default
from invoices import INVOICE

from dlm import Engine, Policy
from dlm.engine import BUILT_IN

PROGRAM = chromium()
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium on the PATH (Debian: chromium)"),
]
CTRL = 2
ANSWERED = "!document.querySelector('#after').hidden"
REFUSED = "document.querySelector('#problem').textContent"
FIRST, SECOND = ".lane:nth-child(1)", ".lane:nth-child(2)"
UNNAMED = """[...document.querySelectorAll("input, select, textarea, button, [tabindex]")]
  .filter(one => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
  .map(one => one.outerHTML)"""
FOCUSED = """(one => [one.id || one.className || one.tagName, one === document.body,
  ["outlineStyle", "boxShadow"].some(name => getComputedStyle(one)[name] !== "none") ||
  getComputedStyle(one.closest(".editor") ?? one).outlineStyle !== "none"])
  (document.activeElement)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert PROGRAM is not None
    with opened(PROGRAM, tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def served(serve):
    """A server of the built-in model."""
    policy = Policy()
    with serve(Engine.load(device="cpu", slots=4, policy=policy)) as running:
        yield running


def page_of(browser, running, width=1440, height=1000, dark=False, link=""):
    page = browser.page(f"{running.url}/{link}", width, height, dark)
    page.until("document.querySelector('#model').value")
    return page


def ask(page, key="Enter"):
    page.focus("#prompt")
    page.press(key)
    page.until(f"{ANSWERED} || {REFUSED}")
    assert page.run(REFUSED) == ""


def number(page, lane, name):
    return float(page.text(f"{lane} [data-number={name}]"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_first_example_shows_what_the_constraint_wins(browser, served, width, dark):
    page = page_of(browser, served, width, 900, dark)
    ask(page)
    assert json.loads(page.text(f"{FIRST} .text")) == INVOICE
    assert page.text(f"{FIRST} .verdict") == "fits the schema"
    assert page.text(f"{SECOND} .verdict") == "does not fit the schema"
    assert number(page, FIRST, "passes") < number(page, SECOND, "passes")
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.run(wide) <= 0
    back = page.run("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", back)[0]) < 60) is dark
    assert page.problems == []
    assert all(url.startswith((served.url, "data:")) for url in page.addresses)


@pytest.mark.parametrize("decoding", ["drafted", "canvas"])
def test_a_replay_scrubs_cells_numbers_and_text(browser, serve, decoding):
    engine = Engine.load(device="cpu", slots=2, decoding=decoding)
    with serve(engine) as running:
        page = page_of(browser, running)
        ask(page)
        passes = int(number(page, FIRST, "passes"))
        final, tokens = page.text(f"{FIRST} .text"), number(page, FIRST, "tokens")
        film = page.run("document.querySelectorAll('.lane:nth-child(1) .pass').length")
        assert film == passes > 2
        assert page.run("document.querySelectorAll('.film .frontier').length") > 0
        page.focus("#frame")
        page.press("Home")
        assert page.text("#frames").startswith("pass 1 of ")
        assert number(page, FIRST, "passes") == 1
        assert number(page, FIRST, "tokens") < tokens
        assert page.run("document.querySelectorAll('.lane:nth-child(1) .text .cell').length") > 2
        assert page.text(f"{FIRST} .verdict") == "pass 1"
        page.press("End")
        assert page.text("#frames") == "answer"
        assert page.text(f"{FIRST} .text") == final
        page.click(f"{FIRST} .pass:nth-child(2)")
        assert number(page, FIRST, "passes") == 2
        page.click("#play")
        page.until("document.querySelector('#frames').textContent === 'answer'")
        assert page.text(f"{FIRST} .text") == final


def test_each_row_of_a_drafted_answer_goes_on_from_the_text_before(browser, served):
    page = page_of(browser, served)
    ask(page)
    rows = page.run(
        "lanes[0].picture.rows.map(({before, draft}) => "
        "[before, draft.tokens.slice(0, draft.pinned)])"
    )
    text = ""
    for before, written in rows:
        assert before == text
        text += "".join(written)
    assert json.loads(text) == INVOICE


def test_masked_canvases_show_masks(browser, serve, tmp_path):
    directory = Oracle(SDAR | {"vocab_size": 1536, "mask_token_id": 4}).write(tmp_path / "masked")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUILT_IN / name, directory)
    (directory / "generation_config.json").write_text(
        '{"eos_token_id": [1, 106], "pad_token_id": 1}'
    )
    with serve(Engine.load(directory, slots=2), names=("blocks",)) as running:
        page = page_of(browser, running)
        page.run("document.querySelector('#most').value = 40")
        page.choose("#kind", "choice")
        page.fill("#constraint", "a long choice of several words\nanother one")
        ask(page)
        assert page.run("document.querySelectorAll('.film .mask').length") > 0
        assert not page.run("document.querySelector('#masks').hidden")


def test_choices_stand_one_a_line_and_the_free_answer_can_be_turned_off(browser, served):
    page = page_of(browser, served)
    page.choose("#kind", "choice")
    page.fill("#prompt", "Answer with one word of nurse, driver. Ben Kim is a driver.")
    page.fill("#constraint", "nurse, of a ward\ndriver")
    page.click("#beside")
    ask(page)
    assert page.text(f"{FIRST} .text") == "driver"
    assert page.text(f"{FIRST} .verdict") == "is one of the choices"
    assert page.run("lanes[1].section.hidden")
    assert page.run("readState().constraint.choice") == ["nurse, of a ward", "driver"]


def test_an_error_is_shown_once_with_its_line_and_no_old_answer_beside_it(browser, served):
    page = page_of(browser, served)
    ask(page)
    wrong = '{\n  "type": "object",\n  "properties": {"a": {"type": "strin"}}\n}'
    for source, line, words in (
        ('{\n  "type": "object"\n  "a": 1\n}', "3", "The schema is not JSON: line 3, column 3."),
        (wrong, "3", "JSON schema refused: line 3, 'strin' is no type"),
    ):
        page.fill("#constraint", source)
        page.press("Enter", CTRL)
        page.until(f"{REFUSED} && document.querySelector('#problem').textContent.includes('3')")
        page.until(f"document.querySelector('#problem').innerText.startsWith({json.dumps(words)})")
        assert page.text("#gutter .bad") == line
        assert page.run("document.activeElement.getAttribute('aria-describedby')") == "problem"
        assert page.run("document.body.innerText").count(words) == 1
    assert page.run("document.querySelector('#stage').hidden")
    page.fill("#constraint", "{}")
    page.fill("#prompt", "")
    page.press("Enter")
    assert page.text("#problem") == "The prompt is empty."


def test_a_missing_key_is_requested_where_it_is_written(browser, serve_random):
    with serve_random(api_keys=("secret",)) as running:
        page = browser.page(running.url, 1000, 800)
        page.run("document.querySelector('#model').value = 'tiny'")
        page.focus("#prompt")
        page.press("Enter")
        page.until(REFUSED)
        assert page.text("#problem") == "This server wants an API key. Write it here."
        assert page.run("document.querySelector('#settings').open")
        assert page.run("document.querySelector('#key').getAttribute('aria-invalid')") == "true"


def test_a_conversation_goes_on_over_a_call_and_its_result(browser, served):
    page = page_of(browser, served)
    page.click("#examples button:nth-child(4)")
    ask(page)
    assert page.text(f"{FIRST} .calls").split() == ["get_weather", "city:", '"Oslo"', "days:", "3"]
    page.click("#go-on")
    assert page.text("#results").startswith('Result of get_weather {"city": "Oslo", "days": 3}')
    page.fill("#results textarea", '{"forecast": "rain", "degrees": 7}')
    page.press("Enter", CTRL)
    page.until(ANSWERED)
    assert page.text(f"{FIRST} .text") == "The forecast is rain and the degrees is 7."
    page.click("#go-on")
    assert [
        line for line in page.text("#turns").split("\n") if line in ("You", "Model", "Tools")
    ] == [*("You", "Model", "Tools", "Model")]
    page.fill("#prompt", "Thanks.")
    ask(page)
    page.click("#start-over")
    assert page.run("readState === undefined || form.turns.length") == 0


def test_a_link_carries_the_request_and_no_markup(browser, served):
    page = page_of(browser, served)
    page.click("#examples button:nth-child(4)")
    page.fill("#prompt", "<img src=x onerror=alert(1)> What is the weather in Rome?")
    page.run(
        "form.turns = [{role: 'user', text: '<b>hi</b>', images: []}, "
        "{role: 'assistant', text: '<i>ho</i>', calls: []}]"
    )
    link = page.run("linkOf()")
    state = page.run("JSON.stringify(readState())")
    other = page_of(browser, served, link=link.split("/", 3)[3])
    assert other.run("JSON.stringify(readState())") == state
    assert other.run("document.querySelectorAll('img, #turns i, #turns pre b').length") == 0
    assert "<i>ho</i>" in other.text("#turns")
    assert other.run("document.querySelector('#stage').hidden")  # nothing has been sent
    broken = page_of(browser, served, link="#request=bm8")
    assert broken.text("#problem") == "The link holds no request that this page can read."


def test_a_link_has_no_images_and_leaves_those_of_the_page(browser, served):
    page = page_of(browser, served)
    image = "data:image/png;base64,aGk="
    page.run(f"form.turns = [{{role: 'user', text: 'hi', images: [{json.dumps(image)}]}}]")
    page.fill("#prompt", "And now?")
    link = page.run("linkOf()")
    other = page_of(browser, served, link=link.split("/", 3)[3])
    turn = {"role": "user", "text": "hi", "images": []}
    assert other.run("readState().turns") == [turn]
    page.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.click("#share")
    page.until("document.querySelector('#copied').textContent")
    assert page.run("location.href") == link
    time.sleep(0.1)  # an event of the new address would have come
    assert page.run("readState().turns") == [turn | {"images": [image]}]


def test_a_link_that_cannot_be_read_leaves_the_conversation(browser, served):
    page = page_of(browser, served)
    page.run("form.turns = [{role: 'user', text: 'new', images: []}]")
    page.run("form.tools[0] = {read: () => null}")
    link = page.run("linkOf()")
    other = page_of(browser, served)
    other.run("form.turns = [{role: 'user', text: 'old', images: []}]")
    state = other.run("JSON.stringify(readState())")
    other.run(f"location.hash = {json.dumps(link.split('#')[1])}")
    other.until(REFUSED)
    assert other.text("#problem") == "The link holds no request that this page can read."
    assert other.run("JSON.stringify(readState())") == state


def test_images_are_offered_where_the_model_reads_them(browser, served):
    page = page_of(browser, served)
    assert page.run("document.querySelector('#pictures').hidden")
    assert served.client.models.list().data[0].input_modalities == ["text"]
    page.run("""(async () => {
      const original = fetch;
      window.fetch = async (...a) => a[0] === "v1/models" ? new Response(JSON.stringify(
        {data: [{id: "tiny", input_modalities: ["text", "image"]}]})) : original(...a);
      await offerModels();
    })()""")
    assert not page.run("document.querySelector('#pictures').hidden")
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    page.run(f"""(() => {{
      const list = new DataTransfer();
      list.items.add(new File([new Uint8Array({list(pixel)})], "dot.png", {{type: "image/png"}}));
      document.querySelector("#images").files = list.files;
      document.querySelector("#images").dispatchEvent(new Event("change"));
    }})()""")
    page.until("document.querySelector('#thumbnails img')?.naturalWidth === 1")
    assert page.run("document.querySelector('#thumbnails img').alt") == "dot.png"
    assert page.run("sentOf(readState()).messages[0].content[0].type") == "image_url"
    page.click("#thumbnails button")
    assert page.run("readState().images") == []
    assert page.problems == []


def test_the_keyboard_reaches_everything_visibly_and_all_controls_have_names(browser, served):
    page = page_of(browser, served, 360, 740)
    ask(page)
    page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.click("#add")
    page.fill(".tool .name", "find")
    assert page.run(UNNAMED) == []
    page.focus("#examples button")
    reached = []
    for _ in range(80):
        page.press("Tab")
        name, over, visible = page.run(FOCUSED)
        if over and reached:
            break
        assert visible, name
        reached.append(name)
    for name in ("prompt", "kind", "constraint", "go", "beside", "add", "choice", "seed", "share"):
        assert name in reached, reached
    for name in ("frame", "play", "go-on", "stream", "copy", "snippet"):
        assert name in reached, reached


def test_escape_stops_and_a_new_request_replaces_a_running_one(browser, served):
    page = page_of(browser, served)
    page.focus("#prompt")
    page.press("Enter")
    page.until("lanes[0].passes > 0")
    page.press("Escape")
    page.until("document.querySelector('#stop').hidden")
    assert page.text("#summary").startswith("Under the constraint: stopped.")
    page.press("Enter")
    page.press("Enter")
    page.until(ANSWERED)
    assert page.text(f"{FIRST} .verdict") == "fits the schema"


@pytest.mark.parametrize("name", by_default(range(1, 5), 4))
def test_every_example_is_answered_rightly(browser, served, name):
    page = page_of(browser, served)
    page.click(f"#examples button:nth-child({name})")
    ask(page)
    assert page.run("lanes[0].ended.kind") == "right"
