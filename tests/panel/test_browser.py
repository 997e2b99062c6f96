"""The page as people use it: by mouse, by keyboard, on a phone, in two languages, by links good and bad."""

import json
from dataclasses import replace
from typing import Any

import pytest

from k3stack.panel.answer import answer
from k3stack.panel.dimensions import DIMENSIONS, start
from k3stack.panel.files import LANGUAGES, page
from k3stack.panel.rows import rows, selection
from k3stack.recipe.render import Form
from tests.panel.browser import CHROMIUM, WHY_NOT, Tab
from tests.panel.sayings import always, left_over, shown
from tests.panel.states import clicked, follow
from tests.panel.test_sayings import in_chinese

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason=WHY_NOT)]


def test_it_opens_with_an_answer(tab: Tab) -> None:
    assert "Fits" in tab.text("#verdict") and "8 GPUs" in tab.text("#verdict")
    assert tab.command() == text_of(start())
    assert tab.page.locator(".row").count() == len(DIMENSIONS)


def text_of(choice: Any, form: Form = Form.DOCKER) -> str:
    written = answer(choice, form).written
    assert written is not None
    return "\n".join("".join(text for text, _ in line) for line in written.lines)


def test_every_value_of_every_row(browser: Any, served: str) -> None:
    """From the beginning, each value is taken and leads where the rows say, or is disabled and says why."""
    tab = Tab(browser, served)
    begin = tab.link()
    for row in rows(start()):
        for option in row.options:
            tab.take(row.dimension, option.value)
            note = tab.text(f"#note-{row.dimension}")
            if option.refused is not None:
                assert option.refused.why in note and option.refused.fix in note
                assert tab.link() == begin
                continue
            assert option.to in tab.link(), option
            if option.moves:
                moved = tab.text("#notices")
                assert len(tab.page.locator("#notices .moved").all()) == len(option.moves), moved
                tab.page.locator("#notices button").first.click()
                tab.settle()
                assert begin in tab.link()
            elif not option.chosen:
                tab.page.evaluate("hash => { location.hash = hash }", begin)
                tab.page.wait_for_timeout(150)
                tab.settle()
    tab.close()


def test_every_disabled_reason_can_be_pointed_at(tab: Tab) -> None:
    for row in rows(start()):
        for option in row.options:
            if option.refused is not None:
                tab.page.locator(f'[id="o-{row.dimension}-{option.value}"]').hover(force=True)
                assert option.refused.why in tab.text(f"#pop-{row.dimension}")
                tab.take(row.dimension, option.value)
                if option.refused.url:
                    link = tab.page.locator(f"#note-{row.dimension} a").first
                    assert link.get_attribute("href") == option.refused.url
                    assert "noopener" in (link.get_attribute("rel") or "")


def test_what_moved_is_shown_and_undone(tab: Tab) -> None:
    tab.take("hardware", "h200")
    said = tab.text("#notices")
    assert "TP8 → TP16" in said and "FP8 → BF16" in said and "0.9 → 0.97" in said
    tab.page.get_by_role("button", name="Undo").click()
    tab.settle()
    assert tab.page.locator("#o-hardware-b300").get_attribute("aria-checked") == "true"
    assert tab.command() == text_of(start())


def test_the_back_button_goes_back(tab: Tab) -> None:
    tab.take("engine", "sglang")
    assert "sglang" in tab.command()
    tab.page.go_back()
    tab.until("K3.command.text().includes('vllm')")


def test_forms(tab: Tab) -> None:
    for form in Form:
        tab.page.locator(f"#o-form-{form.value}").click(force=True)
        tab.settle()
        tab.until(f"location.hash.includes('form={form.value}')")
        assert tab.command() == text_of(start(), form)
    tab.take("hardware", "mi355x")
    tab.page.locator("#o-form-skypilot").hover(force=True)
    assert "SkyPilot has no name" in tab.text("#why")


def test_sliders_change_memory_and_command(tab: Tab) -> None:
    slider = tab.page.locator("#s-context")
    slider.focus()
    slider.press("End")
    tab.until("location.hash.includes('context=1048576')")
    tab.settle()
    assert "--max-model-len 1048576" in tab.command()
    tab.page.locator("#s-concurrency").focus()
    tab.page.locator("#s-concurrency").press("End")
    tab.until("location.hash.includes('concurrency=512')")
    tab.settle()
    assert "Does not fit" in tab.text("#verdict") and "too much" in tab.text("#verdict")
    assert "Would fit:" in tab.text("#limits") and "No command" in tab.text("#command")
    assert tab.page.locator("#copy").is_disabled()


def test_copy_and_download(tab: Tab) -> None:
    tab.page.locator("#copy").click()
    tab.until("document.getElementById('copy').textContent === 'Copied'")
    assert tab.page.evaluate("navigator.clipboard.readText()") == tab.command()
    with tab.page.expect_download() as coming:
        tab.page.locator("#download").click()
    assert coming.value.suggested_filename == "k3-docker.sh"
    assert coming.value.path().read_text() == tab.command()
    tab.page.locator("#link").click()
    tab.until("document.getElementById('link').textContent === 'Copied'")
    assert tab.page.evaluate("navigator.clipboard.readText()") == tab.page.url


def test_every_flag_is_explained(tab: Tab) -> None:
    parts = tab.page.locator("#command .part").all()
    assert len(parts) > 20
    for part in parts[::4]:
        part.hover()
        said = tab.text("#why")
        assert part.inner_text() in said and "20" in said
    tab.page.locator("#command .part").first.focus()
    tab.page.keyboard.press("ArrowDown")
    assert tab.page.evaluate("document.activeElement.textContent") in tab.text("#why")


@pytest.mark.parametrize("key", ["Home", "End"])
def test_a_pointer_that_rests_explains_nothing(tab: Tab, key: str) -> None:
    """The keys scroll the command, and another part comes to lie under a pointer that did not move."""
    tab.page.set_viewport_size({"width": 1280, "height": 720})
    parts = tab.page.locator("#command .part")
    under = (parts.count() - 1, parts.count() - 4) if key == "Home" else (0, 4)
    for number in under:
        parts.nth(number).hover()
        parts.nth(1).focus()
        tab.page.keyboard.press(key)
        tab.page.wait_for_timeout(400)
        assert tab.page.evaluate("document.activeElement.textContent") in tab.text("#why")


def test_the_paste_box(tab: Tab) -> None:
    tab.page.fill("#check-text", "vllm serve moonshotai/Kimi-K3 --tool-call-parser kimi_k2 --bogus 3")
    tab.page.click("#check-run")
    tab.page.wait_for_selector("#checked .fault")
    said = tab.text("#checked")
    assert "Wrong for Kimi-K3" in said and "--bogus" in said and "kimi_k2" in said


def test_a_script_with_several_roles_in_the_paste_box(tab: Tab) -> None:
    side = "sglang serve --model-path moonshotai/Kimi-K3 --disaggregation-mode"
    script = (
        f"case $1 in\nprefill) {side} prefill --page-size 64 ;;\n*) {side} decode --page-size 32 --bogus 1 ;;\nesac"
    )
    tab.page.fill("#check-text", script)
    tab.page.click("#check-run")
    tab.page.wait_for_selector("#checked .checked-role")
    assert [one.strip() for one in tab.page.locator(".checked-role h3").all_inner_texts()] == [
        "prefill line 2",
        "decode line 3",
    ]
    assert "--page-size is 64 for prefill and 32 for decode" in tab.text("#checked > .faults")
    assert "--bogus" in tab.page.locator(".checked-role").nth(1).inner_text()
    assert "--bogus" not in tab.page.locator(".checked-role").nth(0).inner_text()


def test_a_link_with_another_share_for_prefill(browser: Any, served: str) -> None:
    choice = replace(follow(("serving", "prefill-decode")), prefill_utilization=0.93)
    tab = Tab(browser, served, f"#{selection(choice)}&form=docker")
    assert tab.command() == text_of(choice) and "--gpu-memory-utilization 0.93" in tab.command()
    assert "prefill_utilization=0.93" in tab.link()
    tab.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Paste a command first"),
        ("<img src=x onerror=alert(1)>", "Cannot be checked"),
        ("x" * 1_000_000, "more than 64 KiB"),
    ],
)
def test_hostile_pastes_get_a_clear_message(browser: Any, served: str, text: str, says: str) -> None:
    tab = Tab(browser, served)
    tab.page.evaluate("text => { document.getElementById('check-text').value = text }", text)
    tab.page.click("#check-run")
    tab.until("document.getElementById('checked').textContent !== ''")
    assert says in tab.text("#checked")
    assert tab.page.locator("#checked img").count() == 0
    tab.close()


def test_a_link_restores_the_whole_state(browser: Any, served: str) -> None:
    choice = follow(("engine", "sglang"), ("speculation", "dspark"), ("goal", "low-latency"))
    link = f"#{selection(choice)}&context=65536&concurrency=16&form=slurm"
    tab = Tab(browser, served, link)
    assert tab.text("#notices") == "" and tab.link() == link
    assert tab.page.locator("#o-speculation-dspark").get_attribute("aria-checked") == "true"
    assert "65,536" in tab.text("#v-context") and tab.text("#v-concurrency") == "16"
    tab.close()


GOOD = selection(start())


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (GOOD.replace("features=", "features=dflash"), "DFlash drafts for K3 were published for SGLang only"),
        (GOOD.replace("hardware=b300", "hardware=h100"), "not on H100"),
        (GOOD.replace("version=0.33.0", "version=9.9"), "9.9"),
        (f"{GOOD}&evil=1", "evil is no field"),
        (f"{GOOD}&context=-5", "cannot be -5"),
        (f"{GOOD}&concurrency=1e99", "cannot be 1e99"),
        (f"{GOOD}&form=exe", "form cannot be exe"),
        ("engine=%3Cscript%3Ealert(1)%3C/script%3E", "<script>alert(1)</script>"),
        ("hardware=__proto__&engine=constructor", "__proto__"),
        (f"{GOOD}&{'a' * 3000}=1", "longer than 2000"),
        (f"{GOOD}&<img src=x onerror=alert(1)>=1", "is no field"),
    ],
)
def test_a_bad_link_is_harmless_and_says_what_changed(browser: Any, served: str, link: str, says: str) -> None:
    tab = Tab(browser, served, f"#{link}")
    tab.page.on("dialog", lambda dialog: pytest.fail("a script of the link ran"))
    assert says in tab.text("#notices")
    assert tab.text("#verdict") and tab.page.locator("#notices img, #notices script").count() == 0
    tab.close()


def test_this_machine_is_told(tab: Tab) -> None:
    tab.page.click("#machine")
    tab.page.wait_for_selector("#notices .notice")
    assert "machine" in tab.text("#notices")


def test_both_languages_and_no_word_of_the_other(browser: Any, served: str) -> None:
    """Each text on the page is of the language's file, or marked as data."""
    for language in LANGUAGES:
        tab = Tab(browser, served, locale="zh-CN" if language == "zh" else "en-US")
        tab.take("engine", "sglang")
        assert str(tab.page.evaluate("document.documentElement.lang")).startswith(language)
        assert json.loads(page(f"{language}.json"))["choices"] == tab.text("#choices-title")
        left = tab.page.evaluate(OWN_WORDS)
        if language == "zh":
            plain = [text for text in left if not any("\u4e00" <= letter <= "\u9fff" for letter in text)]
            known = set(json.loads(page("zh.json")).values())
            assert not [text for text in plain if text not in known and any(map(str.isalpha, text))], plain
        tab.page.click("#language")
        assert tab.text("#choices-title") != json.loads(page(f"{language}.json"))["choices"]
        tab.close()


def test_the_page_looks_sentences_up_as_the_tests_do(browser: Any, served: str) -> None:
    tab = Tab(browser, served, locale="zh-CN")
    texts = sorted(
        {pair for pair in (*always(), *(pair for seed in range(40) for pair in shown(clicked(seed)))) if pair[1]}
    )
    script = (
        "all => all.map(([how, text]) => how === 'said' ? K3.said(text) : K3.listed(text, how === 'cited' ? ';' : ','))"
    )
    said = tab.page.evaluate(script, texts)
    assert dict(zip(texts, said, strict=True)) == {pair: in_chinese(*pair) for pair in texts}
    tab.close()


CLICKS = (
    (),
    (("engine", "sglang"), ("speculation", "dspark")),
    (("hardware", "h200"), ("serving", "prefill-decode")),
    (("scheme", "nvfp4-mixed"), ("parsers", "raw")),
    (("hardware", "gb200"), ("goal", "high-throughput")),
)


@pytest.mark.parametrize("clicks", CLICKS, ids=lambda clicks: "-".join(word for _, word in clicks) or "start")
def test_a_reader_of_chinese_sees_no_english(browser: Any, served: str, clicks: tuple[tuple[str, str], ...]) -> None:
    """Everything open, every value pointed at, a plan that does not fit, a command that is wrong."""
    tab = Tab(browser, served, locale="zh-CN")
    for dimension, word in clicks:
        tab.take(dimension, word)
    for summary in tab.page.locator("summary").all():
        summary.click()
    tab.page.fill("#check-text", "vllm serve moonshotai/Kimi-K3 --tool-call-parser kimi_k2 --bogus 3 --seed x")
    tab.page.click("#check-run")
    tab.page.wait_for_selector("#checked .fault")
    seen = set(tab.page.evaluate(ALL_WORDS))
    for chip in tab.page.locator("#rows .chip[aria-disabled=true], #rows .chip.moves").all():
        chip.hover(force=True)
        seen |= set(tab.page.evaluate(ALL_WORDS))
    for part in tab.page.locator("#command .part").all()[::3]:
        part.hover()
        seen |= set(tab.page.evaluate(ALL_WORDS))
    tab.page.locator("#s-concurrency").focus()
    tab.page.locator("#s-concurrency").press("End")
    tab.settle()
    seen |= set(tab.page.evaluate(ALL_WORDS))
    assert len(seen) > 150
    left = {text: words for text in seen if (words := left_over(text))}
    assert not left
    tab.close()


TEXTS = """
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim();
    if (text && !walk.currentNode.parentElement.closest(hidden)) found.push(text);
  }"""

ALL_WORDS = f"""() => {{
  const hidden = 'code, pre, noscript, textarea, .foot';{TEXTS}
  for (const node of document.querySelectorAll("[aria-label], [title]")) {{
    found.push(node.getAttribute("aria-label") || node.title);
  }}
  return found;
}}"""

OWN_WORDS = f"""() => {{
  const hidden = '[translate="no"], noscript, .figure';{TEXTS}
  return found;
}}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(browser: Any, served: str, scheme: str) -> None:
    tab = Tab(browser, served, color_scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    first = tab.page.evaluate(paper)
    tab.page.click("#theme")
    tab.page.click("#theme") if scheme == "light" else None
    assert tab.page.evaluate(paper) != first
    tab.page.reload()
    tab.ready()
    assert tab.page.evaluate(paper) != first
    tab.close()


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1440])
def test_no_width_scrolls_sideways(browser: Any, served: str, width: int, language: str) -> None:
    tab = Tab(browser, served, viewport={"width": width, "height": 800}, locale=language)
    tab.take("serving", "prefill-decode")
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.close()


def test_a_tap_shows_a_reason_on_a_phone(browser: Any, served: str) -> None:
    tab = Tab(browser, served, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    tab.page.locator("#o-scheme-bf16").tap(force=True)
    assert "5.6 TB" in tab.text("#note-scheme")
    tab.page.locator("#dock").tap()
    assert tab.page.evaluate("document.activeElement.id") == "results"
    tab.page.locator("#command .part").first.tap()
    assert tab.text("#why")
    tab.close()


def test_by_keyboard_alone(tab: Tab) -> None:
    press = tab.page.keyboard.press
    press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    for name in ("to-check", "machine", "link", "language", "theme", "explain", "restart", "o-hardware-b300"):
        press("Tab")
        assert tab.page.evaluate("document.activeElement.id") == name
    press("ArrowLeft")
    assert tab.page.evaluate("document.activeElement.id") == "o-hardware-b200"
    press("Enter")
    tab.settle()
    tab.until("location.hash.includes('hardware=b200')")
    assert tab.page.evaluate("document.activeElement.id") == "o-hardware-b200"
    press("Home")
    assert tab.page.evaluate("document.activeElement.id") == "o-hardware-h100"
    assert "not on H100" in tab.text("#note-hardware")
    press("Space")
    assert "hardware=b200" in tab.link()


def test_a_screen_reader_hears_verdict_and_reasons(tab: Tab) -> None:
    live = tab.page.evaluate("[...document.querySelectorAll('[aria-live]')].map(node => node.id)")
    assert live == ["notices", "checked"], "a slider or a flag that is pointed at must not read the page aloud"
    tab.until("document.getElementById('told').textContent.startsWith('Fits')")
    assert tab.page.locator("#told").get_attribute("role") == "status"
    assert tab.page.get_by_role("radiogroup", name="Hardware").count() == 1
    assert tab.page.get_by_role("radio", name="B300 268 GB", exact=True).get_attribute("aria-checked") == "true"
    bar = tab.page.locator(".bar").get_attribute("aria-label") or ""
    assert "weights" in bar and "GB" in bar
    assert tab.page.locator("#s-context").get_attribute("aria-valuetext") == "192K (196,608 tokens)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("state", "width", "language"), [("fits", 1280, "en-US"), ("not", 1280, "zh-CN"), ("fits", 320, "zh-CN")]
)
def test_accessibility(browser: Any, served: str, scheme: str, state: str, width: int, language: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab = Tab(browser, served, color_scheme=scheme, locale=language, viewport={"width": width, "height": 900})
    if state == "not":
        tab.take("hardware", "h200")
        tab.take("scheme", "bf16")
    else:
        tab.page.fill("#check-text", "vllm serve moonshotai/Kimi-K3 --bogus")
        tab.page.click("#check-run")
        tab.page.wait_for_selector("#checked .fault")
        for summary in tab.page.locator("summary").all():
            summary.click()
    found = Axe().run(tab.page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    told = [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in serious]
    assert not told, told
    tab.close()


def test_nothing_is_fetched_from_elsewhere(browser: Any, served: str) -> None:
    context = browser.new_context()
    page_ = context.new_page()
    asked: list[str] = []
    page_.on("request", lambda request: asked.append(request.url))
    page_.goto(served)
    page_.wait_for_selector("html[data-ready]")
    assert len(asked) > 10 and all(url.startswith(served) for url in asked), asked
    context.close()


def test_it_is_light_and_quick(browser: Any, served: str) -> None:
    context = browser.new_context()
    page_ = context.new_page()
    sizes: list[int] = []
    page_.on("response", lambda response: sizes.append(int(response.headers.get("content-length", "0"))))
    page_.goto(served)
    page_.wait_for_selector("html[data-ready]")
    assert sum(sizes) < 300_000
    context.close()
