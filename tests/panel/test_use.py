"""The page as a deployer lives with it: in a hurry, without a mouse, on paper, on a bad day."""

import json
from typing import Any

import pytest

from k3stack.panel.answer import answer
from k3stack.panel.dimensions import start
from k3stack.panel.files import page as words
from k3stack.recipe.render import Form
from tests.panel.browser import CHROMIUM, WHY_NOT, Tab, serving, started
from tests.panel.states import follow

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason=WHY_NOT)]


# --- choosing


def test_what_would_fit_is_taken_with_a_click_and_undone(tab: Tab) -> None:
    tab.take("hardware", "h200")
    assert "Does not fit" in tab.text("#verdict")
    tab.page.locator(".would", has_text="5 concurrent").get_by_role("button", name="Use this").click()
    tab.until("document.getElementById('verdict').textContent.startsWith('Tight')")
    assert "196,608 → 49,152" in tab.text("#notices") and "32 → 5" in tab.text("#notices")
    assert "--max-model-len 49152" in tab.command() and "--max-num-seqs 5" in tab.command()
    tab.page.get_by_role("button", name="Undo").click()
    tab.until("document.getElementById('verdict').textContent.startsWith('Does not fit')")


def test_what_would_fit_one_role_is_possible_beside_the_other(browser: Any, served: str) -> None:
    """By memory alone decode would fit as TP4 x PP2; SGLang's rule wants as many stages as prefill has."""
    asked = ("hardware", "b300"), ("engine", "sglang"), ("serving", "prefill-decode"), ("goal", "low-latency")
    choice = follow(*asked, ("kv", "bf16")).at(1_048_576, 32)
    tab = Tab(browser, served, f"#{answer(choice, Form.DOCKER).selection}&context=1048576&concurrency=32&form=docker")
    roles = tab.page.locator(".would", has_text="TP16").get_by_role("button", name="Use this")
    roles.nth(1).wait_for()
    assert tab.page.locator(".would", has_text="x PP2").count() == 0
    roles.nth(1).click()
    tab.until("location.hash.includes('&layout=tp16')")
    assert "prefill=tp8" in tab.link() and "Does not fit" in tab.text("#verdict"), "prefill was not asked about"
    tab.close()


def test_a_value_says_whether_it_would_fit_before_it_is_taken(tab: Tab) -> None:
    tab.page.locator("#o-hardware-h200").hover()
    tab.until("document.getElementById('pop-hardware').textContent.includes('Does not fit')")
    assert "16 GPUs, 2 nodes" in tab.text("#pop-hardware")
    tab.page.keyboard.press("Escape")
    assert tab.text("#pop-hardware") == ""
    tab.page.mouse.move(0, 0)
    tab.page.locator("#o-hardware-b300").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.until("document.getElementById('note-hardware').textContent.includes('Fits')")


def test_layouts_stand_under_what_they_take_and_say_what_they_do(tab: Tab) -> None:
    group = tab.page.locator(".chip-group", has_text="16 GPUs, 2 nodes")
    assert group.locator("[id='o-layout-tp8,pp2,dp1,dcp1']").inner_text() == "TP8 x PP2"
    tab.take("layout", "tp8,pp2,dp1,dcp1")
    note = tab.text("#note-layout")
    assert "every layer is cut over 8 GPUs" in note and "2 stages" in note
    tab.take("hardware", "gb200")
    assert tab.page.locator(".chip-group", has_text="16 GPUs, 4 nodes").count() == 1, "a node of GB200 has four GPUs"


def test_every_row_is_explained_on_demand(tab: Tab) -> None:
    assert not tab.page.locator("#about-kv").is_visible()
    tab.page.click("#explain")
    for about in tab.page.locator(".row-about").all():
        assert about.is_visible() and about.inner_text().endswith(".")
    tab.page.reload()
    tab.ready()
    assert tab.page.locator("#about-kv").is_visible() and tab.page.locator("#explain[aria-pressed=true]").count() == 1


def test_the_sliders_are_said_together(tab: Tab) -> None:
    held = answer(start(), Form.DOCKER).memory[0].capacity
    said = tab.text(".in-flight")
    assert f"Of 32 requests in flight, {held.full_requests} can be of full length" in said
    assert f"{held.kv_tokens // 32:,} tokens" in said


def test_replicas_share_the_requests(tab: Tab) -> None:
    tab.take("goal", "high-throughput")
    assert "TP1 x DP16" in tab.text("#rows .chip[aria-checked=true].named")
    assert "one of 16 replicas" in tab.text("#limits")


def test_what_a_choice_changes_in_the_command_is_shown(tab: Tab) -> None:
    tab.take("input", "text-only")
    came = tab.page.locator("#why .came code").all_inner_texts()
    assert came == ["--language-model-only"] or any("language-model" in line for line in came), came
    fresh = tab.page.locator("#command .fresh").all_inner_texts()
    assert [line.strip().removesuffix(" \\") for line in fresh] == came
    tab.take("goal", "low-latency")
    assert "changes nothing in the command" in tab.text("#why") and tab.page.locator(".fresh").count() == 0
    tab.page.locator("#o-form-slurm").click()
    tab.settle()
    assert tab.page.locator("#why .came").count() == 0, "another form is not another choice"


def test_what_is_new_in_the_command_is_in_sight(tab: Tab) -> None:
    inside = """() => {
      const box = document.querySelector(".code").getBoundingClientRect();
      const line = document.querySelector(".code .fresh").getBoundingClientRect();
      return line.top >= box.top && line.bottom <= box.bottom;
    }"""
    tab.take("input", "text-only")
    assert tab.page.evaluate(inside)
    at = tab.page.evaluate("document.querySelector('.code').scrollTop")
    tab.page.locator("#s-context").focus()
    tab.page.keyboard.press("ArrowLeft")
    tab.until("location.hash.includes('context=131072')")
    tab.settle()
    assert tab.page.evaluate("document.querySelector('.code').scrollTop") == at > 0
    assert tab.page.evaluate(inside)


def test_start_over(tab: Tab) -> None:
    begin = tab.link()
    tab.take("engine", "sglang")
    tab.page.click("#restart")
    tab.settle()
    assert tab.link() == begin and tab.text("#notices") == ""


MACHINE = {"name": "NVIDIA GB200", "memory_bytes": 198_000_000_000, "driver": "", "missing": []}


@pytest.mark.parametrize(
    ("found", "says", "layout"),
    [
        ({"hardware": "h200", "count": 8}, "What is shown takes 16 GPUs, 2 nodes", "TP16"),
        # as a machine with two H200 answered, 2026-11-30
        (
            {"hardware": "h200", "name": "NVIDIA H200", "count": 2, "memory_bytes": 150_109_880_320},
            "What is shown takes 16 GPUs, 2 nodes",
            "TP16",
        ),
        ({"hardware": "b300", "count": 16}, "TP8 → TP1 x DP16 + EP", "TP1 x DP16 + EP"),
        ({"hardware": "h100", "count": 8}, "not on H100", "TP8"),
    ],
)
def test_this_machine_is_filled_in(tab: Tab, found: dict[str, Any], says: str, layout: str) -> None:
    tab.page.route("**/api/machine", lambda route: route.fulfill(json=MACHINE | found))
    tab.page.click("#machine")
    tab.page.wait_for_selector("#notices .notice")
    tab.settle()
    said = tab.text("#notices")
    assert f"This machine has {found['count']} x" in said and says in said
    assert tab.text("[data-row=layout] .chip[aria-checked=true]") == layout


# --- in a hurry


def test_no_click_is_lost_and_all_that_moved_is_shown(tab: Tab) -> None:
    begin = tab.link()
    ids = ["o-engine-sglang", "o-goal-low-latency", "o-speculation-dspark", "o-hardware-b200", "o-hardware-gb300"]
    tab.page.evaluate("ids => ids.forEach(id => document.getElementById(id).click())", ids)
    tab.settle()
    for word in ("engine=sglang", "goal=low-latency", "features=dspark", "hardware=gb300"):
        assert word in tab.link()
    assert "Release: 0.33.0 → 0.5.23" in tab.text("#notices")
    tab.page.get_by_role("button", name="Undo").click()
    tab.settle()
    assert tab.link() == begin


def test_a_slider_that_is_dragged_is_never_pulled_back(browser: Any, served: str) -> None:
    tab = Tab(browser, served)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    pulled = tab.page.evaluate("""async () => {
      const slider = document.getElementById("s-context");
      let pulled = 0;
      for (let round = 0; round < 4; round++) {
        for (const at of [...Array(9).keys()]) {
          slider.value = at;
          slider.dispatchEvent(new Event("input"));
          await new Promise(resolve => setTimeout(resolve, 8));
          if (Number(slider.value) !== at) pulled++;
        }
      }
      return pulled;
    }""")
    tab.settle()
    assert pulled == 0
    assert "context=1048576" in tab.link() and "1,048,576" in tab.text("#v-context")
    assert len([url for url in asked if "api/answer" in url]) <= 9, "an answer that is known is not asked for again"
    tab.close()


def test_a_press_does_not_move_what_is_pressed(browser: Any, served: str) -> None:
    """A note that went when the mouse button went down once pulled the last rows away from under it."""
    tab = Tab(browser, served, viewport={"width": 1280, "height": 700})
    value = tab.page.locator("#o-kv-bf16")
    tab.page.locator("#choices").evaluate("node => { node.scrollTop = node.scrollHeight }")
    value.hover()
    before = value.bounding_box()
    tab.page.mouse.down()
    assert value.bounding_box() == before
    tab.page.mouse.up()
    tab.settle()
    assert "kv=bf16" in tab.link()
    tab.close()


def test_back_and_forward(tab: Tab) -> None:
    begin = tab.link()
    tab.take("hardware", "h200")
    there = tab.link()
    tab.page.go_back()
    tab.until("location.hash.includes('b300') && !document.documentElement.ariaBusy")
    tab.until("document.getElementById('notices').textContent === ''")
    assert tab.link() == begin and "--tensor-parallel-size 8" in tab.command()
    tab.page.go_forward()
    tab.until("document.getElementById('o-hardware-h200').ariaChecked === 'true'")
    assert tab.link() == there


# --- by ear, by keyboard, on paper


def test_a_slider_does_not_read_the_page_aloud(tab: Tab) -> None:
    tab.until("document.getElementById('told').textContent !== ''")
    tab.page.evaluate("""() => {
      window.heard = 0;
      const ear = new MutationObserver(all => { window.heard += all.length });
      const all = { childList: true, subtree: true, characterData: true };
      for (const node of document.querySelectorAll("[aria-live], [role=status]")) ear.observe(node, all);
    }""")
    tab.page.locator("#s-concurrency").focus()
    for _ in range(5):
        tab.page.keyboard.press("ArrowRight")
        tab.page.wait_for_timeout(60)
    tab.settle()
    tab.until("document.getElementById('told').textContent === document.getElementById('verdict').textContent")
    assert tab.page.evaluate("window.heard") <= 2, "one sentence, once the slider is at rest"


def test_escape_puts_away_what_is_open(tab: Tab) -> None:
    press = tab.page.keyboard.press
    tab.take("scheme", "bf16")
    assert "Not possible" in tab.text("#note-scheme")
    press("Escape")
    assert "Not possible" not in tab.text("#note-scheme")
    tab.take("hardware", "h200")
    press("Escape")
    assert tab.text("#notices") == ""
    tab.take("hardware", "b300")
    press("Escape")
    tab.page.locator("#command .part").first.focus()
    assert tab.page.locator("#why.open .reason").count() > 0
    press("Escape")
    assert tab.page.locator("#why.open").count() == 0


def test_every_tab_stop_can_be_seen_and_has_a_name(tab: Tab) -> None:
    seen: list[str] = []
    for _ in range(80):
        tab.page.keyboard.press("Tab")
        name, drawn = tab.page.evaluate("""() => {
          const node = document.activeElement;
          const style = getComputedStyle(node);
          const label = node.labels && node.labels[0];
          const name = node.ariaLabel || node.textContent || (label && label.textContent) || "";
          return [name, style.outlineStyle + style.outlineWidth];
        }""")
        focused = tab.page.evaluate("document.activeElement.id || document.activeElement.tagName")
        if focused == "BODY":
            break
        assert name.strip(), focused
        assert drawn.startswith("solid") and not drawn.endswith("0px"), (focused, drawn)
        seen.append(focused)
    assert {"machine", "explain", "s-context", "copy", "copy-same", "check-text", "check-run"} <= set(seen)
    assert len(seen) < 60, "one stop for each row, not one for each value"


def test_motion_is_left_out_when_asked(browser: Any, served: str) -> None:
    tab = Tab(browser, served, reduced_motion="reduce")
    lengths = tab.page.evaluate(
        "[...document.querySelectorAll('*')].map(one => parseFloat(getComputedStyle(one).transitionDuration))"
    )
    assert max(lengths) == 0
    tab.close()


def test_forced_colours_tell_chosen_from_not(browser: Any, served: str) -> None:
    tab = Tab(browser, served, forced_colors="active")
    paper = "id => getComputedStyle(document.getElementById(id)).backgroundColor"
    assert tab.page.evaluate(paper, "o-hardware-b300") != tab.page.evaluate(paper, "o-hardware-b200")
    pieces = tab.page.evaluate(
        "[...document.querySelectorAll('.bar .piece')].map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(pieces)) >= 4, "the bar's parts look different"
    tab.close()


def test_on_paper_it_is_choices_memory_command_and_reasons(tab: Tab) -> None:
    tab.page.emulate_media(media="print")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    visible = "id => document.getElementById(id).checkVisibility()"
    for name in ("o-hardware-b300", "verdict", "command", "sheet", "items"):
        assert tab.page.evaluate(visible, name), name
    for name in ("o-hardware-h200", "tools", "figures", "check-form", "copy", "dock"):
        assert not tab.page.evaluate(visible, name), name
    code = tab.page.evaluate("(node => node.scrollHeight - node.clientHeight)(document.querySelector('.code'))")
    assert code <= 1, "the command is whole"
    reasons = tab.text("#sheet")
    for part in tab.page.locator("#command .part").all_inner_texts():
        assert part in reasons
    tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.text("#sheet") == "" and not tab.page.evaluate("document.querySelector('.more').open")


@pytest.mark.parametrize("width", [640, 720])
def test_zoomed_to_twice_the_size(browser: Any, served: str, width: int) -> None:
    tab = Tab(browser, served, viewport={"width": width, "height": 450}, device_scale_factor=2)
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.page.locator("#dock").click()
    assert tab.page.evaluate("document.activeElement.id") == "results"
    tab.close()


def test_the_verdict_stays_in_sight(tab: Tab) -> None:
    assert not tab.page.locator("#dock").is_visible()
    tab.page.evaluate("document.getElementById('check').scrollIntoView()")
    tab.page.locator("#dock").wait_for()
    boxes = [tab.page.locator(one).bounding_box() for one in (".brand", "#dock", "#tools")]
    ends = [(box["x"], box["x"] + box["width"]) for box in boxes if box]
    assert len(ends) == 3 and ends[0][1] <= ends[1][0] and ends[1][1] <= ends[2][0], "nothing lies on anything"


def test_a_reason_on_a_phone_is_in_sight(browser: Any, served: str) -> None:
    tab = Tab(browser, served, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    tab.page.locator("#command .part").nth(3).tap()
    box, dock = tab.page.locator("#why").bounding_box(), tab.page.locator("#dock").bounding_box()
    assert box and dock and box["y"] > 0 and box["y"] + box["height"] <= dock["y"]
    tab.close()


def test_a_refusal_on_a_phone_is_in_sight(browser: Any, served: str) -> None:
    tab = Tab(browser, served, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    tab.page.locator("#o-scheme-bf16").tap(force=True)
    box, dock = tab.page.locator("#note-scheme").bounding_box(), tab.page.locator("#dock").bounding_box()
    assert box and dock and box["y"] + box["height"] <= dock["y"]
    tab.close()


# --- on a bad day


def test_a_server_that_goes_away_is_said_and_can_come_back(browser: Any) -> None:
    with serving() as address:
        tab = Tab(browser, address)
        begin, command = tab.link(), tab.command()
        port = address.rstrip("/").rpartition(":")[2]
    tab.take("engine", "sglang")
    assert "No answer came" in tab.text("#notices") and "still running" in tab.text("#notices")
    assert tab.link() == begin and tab.command() == command
    tab.page.locator("#s-context").focus()
    tab.page.keyboard.press("End")
    tab.settle()
    assert "196,608" in tab.text("#v-context"), "the slider says what the page shows"
    with started(port):
        tab.page.get_by_role("button", name="Try again").click()
        tab.settle()
        assert "context=1048576" in tab.link() and tab.text("#notices") == ""
    tab.excused = "ERR_CONNECTION_REFUSED"
    tab.close()


NO_CLIPBOARD = """navigator.clipboard.writeText = () => Promise.reject(new Error("no"));
document.execCommand = () => false;"""


def test_without_a_clipboard_the_text_is_marked(browser: Any, served: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NO_CLIPBOARD)
    page.goto(served)
    page.wait_for_selector("html[data-ready]")
    page.click("#copy")
    page.wait_for_selector("#notices .notice")
    marked = page.evaluate("getSelection().toString()")
    assert marked.rstrip("\n") == page.evaluate("K3.command.text()").rstrip("\n")
    page.click("#link")
    page.wait_for_selector("#notices .address")
    assert page.evaluate("document.activeElement.value") == page.url
    context.close()


def test_what_is_marked_by_hand_is_the_command(tab: Tab) -> None:
    tab.page.evaluate("getSelection().selectAllChildren(document.querySelector('.code'))")
    tab.page.keyboard.press("Control+c")
    tab.until("navigator.clipboard.readText().then(text => text.includes('docker run'))")
    copied = tab.page.evaluate("navigator.clipboard.readText()")
    assert copied.rstrip("\n") == tab.command().rstrip("\n")


def test_a_link_that_opens_here_only_is_said_to(tab: Tab) -> None:
    tab.page.click("#link")
    tab.page.wait_for_selector("#notices .notice")
    said = tab.text("#notices")
    assert "on this machine only" in said and "k3 recipe --link 'engine=vllm" in said


def test_a_phone_shares_the_link(browser: Any, served: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.add_init_script("navigator.share = async what => { window.shared = what.url }")
    page.goto(served)
    page.wait_for_selector("html[data-ready]")
    page.tap("#link")
    assert page.evaluate("window.shared") == page.url
    context.close()


def test_a_browser_that_keeps_nothing(browser: Any, served: str) -> None:
    context = browser.new_context(locale="en-US")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('no') } })")
    page.goto(served)
    page.wait_for_selector("html[data-ready]")
    page.click("#theme")
    page.click("#explain")
    page.click("#language")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.inner_text("#choices-title") == json.loads(words("zh.json"))["choices"] and not errors
    context.close()


def test_without_javascript_it_says_so_and_shows_nothing_else(browser: Any, served: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(served)
    lines = [line for line in page.inner_text("body").splitlines() if line]
    assert lines[0] == "k3stack" and "needs JavaScript" in lines[1] and "需要 JavaScript" in lines[2]
    assert len(lines) == 3
    context.close()


def test_a_very_long_model_path(browser: Any, served: str) -> None:
    model = "/very/long/path" * 60
    link = answer(start(), Form.DOCKER).selection
    tab = Tab(browser, served, f"#{link}&model={model}", viewport={"width": 390, "height": 844})
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert model in tab.command() and tab.text("#notices") == ""
    tab.close()


def test_two_tabs_do_not_disturb_each_other(browser: Any, served: str) -> None:
    one, two = Tab(browser, served), Tab(browser, served)
    one.take("engine", "sglang")
    two.take("goal", "high-throughput")
    assert "engine=sglang" in one.link() and "engine=vllm" in two.link() and "goal=balanced" in one.link()
    one.close()
    two.close()
