"""The page of `regrow report` in a real browser: it opens, shows, sorts, searches, and runs no
script but its own.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
from conftest import Page
from selenium import webdriver
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.keys import Keys

Show = Callable[[Any], Page]

FIXTURES = Path(__file__).parents[2] / "fixtures"

# A million where it is asked for; otherwise as many as make a page that needs its virtual rows.
MANY = int(os.environ.get("REGROW_LEAVES", "100000"))


@pytest.mark.parametrize("name", ["sound", "damaged", "unprotected", "compared", "empty", "hostile"])
def test_it_opens_without_a_complaint_and_asks_for_nothing(show: Show, name: str) -> None:
    page = show(getattr(models, name)())
    assert page.js("document.documentElement.dataset.state") == "ready"
    assert page.complaints() == []
    assert {url.split(":")[0] for url in page.requests()} <= {"file", "blob", "data"}
    assert page.requests() <= {page.path.as_uri()}
    is_wider = page.js("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert not is_wider, "it has to be scrolled sideways"


def test_the_summary_says_what_it_is(show: Show) -> None:
    page = show(models.sound())
    assert "Sound" in page.text(".verdict")
    assert "Step 400, a checkpoint in the layout regrow (safetensors files): 295 leaves" in page.text(".summary-text")
    assert page.texts(".figure .value")[:2] == ["295", "328,587,282"]


def test_search_finds_leaves_by_words_and_by_parts_of_paths(show: Show) -> None:
    page = show(models.sound())
    page.search("LAYER_7 up")
    assert sorted(page.rows("#leaf-table")) == [
        "opt_state/0/mu/layer_7/mlp/up/kernel",
        "opt_state/0/nu/layer_7/mlp/up/kernel",
        "params/layer_7/mlp/up/kernel",
    ]
    assert page.text("#leaf-count") == "3 of 295 leaves"
    page.search("params/layer_7/mlp")
    assert len(page.rows("#leaf-table")) == 2
    page.search("nowhere")
    assert page.rows("#leaf-table") == []
    assert "No row matches" in page.text("#leaf-table")
    page.search("")
    assert page.text("#leaf-count") == "295 leaves"


def test_a_filter_leaves_what_it_says(show: Show) -> None:
    page = show(models.sound())
    page.do("const f = document.getElementById('leaf-filter'); f.value = 'nan'; f.dispatchEvent(new Event('change'))")
    page.until("document.getElementById('leaf-count').textContent.includes(' of ')")
    assert page.rows("#leaf-table") == ["opt_state/0/nu/layer_3/mlp/down/kernel"]
    assert page.rows("#leaf-table", 9) == ["12"]


def test_columns_sort_both_ways_and_unknown_values_come_last(show: Show) -> None:
    page = show(models.sound())
    assert page.rows("#leaf-table", 3)[0] == "46.9 MiB", "the largest come first"
    page.click("#leaf-table [data-sort=l2_norm]")
    page.until("document.querySelector('#leaf-table [aria-sort=descending]')?.textContent === 'L2 norm'")
    assert page.rows("#leaf-table")[0] == "params/embedder/embedding"
    page.click("#leaf-table [data-sort=l2_norm]")
    page.until("document.querySelector('#leaf-table [aria-sort=ascending]')?.textContent === 'L2 norm'")
    first = page.rows("#leaf-table")[0]
    page.do("document.querySelector('#leaf-table .scroller').focus()")
    page.keys(Keys.END)
    page.until("document.querySelector('#leaf-table .active')")
    assert page.rows("#leaf-table")[-1] == "name", "a text has no norm"
    assert first != "name"
    page.click("#leaf-table [data-sort=path]")
    page.until("document.querySelector('#leaf-table [aria-sort=ascending]')?.textContent === 'Key path'")
    assert page.rows("#leaf-table")[0] == "params/embedder/embedding", "flatten order"


def test_a_leaf_shows_all_that_is_known_of_it(show: Show) -> None:
    page = show(models.sound())
    page.search("params/layer_3/attn/q")
    page.click("#leaf-table [data-index='0']")
    page.until("document.querySelector('#leaf-detail .histogram svg')")
    said = page.text("#leaf-detail")
    for text in (
        "params/layer_3/attn/q/kernel",
        "589,824",
        "crc32c of each 4 MiB",
        "P('data', 'model')",
        "Std. deviation",
    ):
        assert text in said
    assert "Histogram with 24 bins" in page.js("document.querySelector('.histogram').getAttribute('aria-label')")


def test_the_treemap_goes_in_and_out(show: Show) -> None:
    page = show(models.sound())
    assert page.texts("#treemap-trail button") == ["all leaves"]
    assert [text.split("/")[0] for text in page.texts("#treemap-list .name")][:2] == ["opt_state", "params"]
    assert "opt_state/0  741.9 MiB" in page.text("#treemap-chart svg text")
    page.click("#treemap-list li:nth-child(2) button")
    assert page.texts("#treemap-trail button") == ["all leaves", "params"]
    assert page.texts("#treemap-list .name")[0] == "embedder"
    # A click on a cell goes as deep as the cell is.
    page.do("document.getElementById('treemap').scrollIntoView({ block: 'center' })")
    middle = (
        "(() => { const t = [...document.querySelectorAll('#treemap-chart svg text')]"
        ".find((e) => e.textContent.startsWith('mlp')).getBoundingClientRect();"
        "return [t.x + t.width / 2, t.y + t.height / 2]; })()"
    )
    action = ActionBuilder(page.driver)
    action.pointer_action.move_to_location(*map(int, page.js(middle))).click()
    action.perform()
    page.until("document.querySelectorAll('#treemap-trail button').length === 4")
    assert page.texts("#treemap-trail button")[-1] == "mlp"
    page.do("document.querySelector('#treemap-trail button').focus()")
    page.keys(Keys.ESCAPE)
    assert len(page.texts("#treemap-trail button")) == 3
    page.click("#treemap-trail button")
    assert page.texts("#treemap-trail button") == ["all leaves"]


def test_small_parts_are_gathered_and_can_be_opened(show: Show) -> None:
    leaves = models.Leaves()
    for at in range(300):
        leaves.add((f"leaf_{at}",), (1000 + at,))
    page = show(models.report(leaves))
    others = page.texts("#treemap-list .name")[-1]
    assert others == "289 others"
    page.click("#treemap-list li:last-child button")
    assert page.texts("#treemap-trail button") == ["all leaves", "289 others"]
    assert page.texts("#treemap-list .name")[0] == "leaf_288"


def test_damage_is_said_first_and_leads_to_its_leaf(show: Show) -> None:
    page = show(models.damaged())
    assert "Damaged: 1 finding" in page.text(".verdict")
    assert "83886080" in page.text("#findings") and "d/params.safetensors" in page.text("#findings")
    page.click("[data-leaf]")
    page.until("document.querySelector('#leaf-detail .wrong')")
    assert page.text("#leaf-table .active .path") == "params/layer_7/mlp/up/kernel"
    is_in_sight = (
        "(() => { const a = document.querySelector('#leaf-table .active').getBoundingClientRect();"
        "const s = document.querySelector('#leaf-table .scroller').getBoundingClientRect();"
        "return a.top >= s.top && a.bottom <= s.bottom; })()"
    )
    page.until(is_in_sight)
    assert "damaged" in page.text("#leaf-table .active")
    assert "✕" in page.text("#treemap-chart svg text"), "a sign, not a colour alone"


def test_what_nothing_protects_is_said(show: Show) -> None:
    page = show(models.unprotected())
    assert "do not cover all of it" in page.text(".verdict")
    assert "nothing protects any of the" in page.text(".summary-text")
    assert set(page.rows("#leaf-table", 4)) == {"○ unprotected"}


def test_a_comparison_has_its_distances(show: Show) -> None:
    page = show(models.compared())
    assert "60 of 304 leaves differ" in page.text("#comparison-0")
    assert page.rows("#comparison-0-table", 1)[:3] == ["only in the other one", "only here", "the shapes differ"]
    page.click("#comparison-0-table [data-sort=max_abs]")
    page.until("document.querySelector('#comparison-0-table [aria-sort=descending]')")
    largest = max(x for x in models.comparison()["leaves"]["max_abs"] if x is not None)
    assert page.rows("#comparison-0-table", 4)[0] == f"{largest:.4g}"
    assert page.js("document.querySelectorAll('#comparison-0-chart svg').length") == 1


def test_steps_and_devices_are_drawn(show: Show) -> None:
    page = show(models.sound())
    assert page.texts("#steps-charts figcaption") == [
        "L2 norm",
        "accuracy",
        "loss",
        "Bytes of files",
        "Seconds that the save took",
    ]
    assert page.rows("#steps-table")[0] == "400"
    assert page.texts("table.mesh")[0].count("device") == 8
    assert "[8000:16000, 384:768]" in page.text("table.mesh")
    assert "4 devices hold each part" in page.text("#shardings")


def test_names_with_any_content_are_text(show: Show) -> None:
    page = show(models.hostile())
    for selector in ("#treemap-list li:nth-child(2) button", "#leaf-table [data-index='0']", "[data-leaf]"):
        page.click(selector)
    assert page.js("window.hacked === undefined")
    assert page.js("document.images.length") == 0
    assert page.js("document.querySelectorAll('script:not([type])').length") == 1
    assert page.complaints() == []
    said = page.js("document.body.innerText")
    assert "<script>window.hacked=1</script>" in said
    assert "\u202e" not in said and "\0" not in said
    assert "{{ 7*7 }}" in said and "49" not in page.text(".summary-text")
    page.search("<script>window")
    assert len(page.rows("#leaf-table")) == 4
    page.search("rtl\u202e")
    assert page.rows("#leaf-table") == []


def test_an_empty_tree_says_so(show: Show) -> None:
    page = show(models.empty())
    assert "Its pytree has no leaves" in page.text(".summary-text")
    assert page.texts("section h2") == ["Summary"]


def test_colours_follow_the_system_and_the_reader(show: Show) -> None:
    page = show(models.sound())
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('#treemap-chart svg text').getAttribute('fill')"
    light = (page.js(ground), page.js(ink))
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    page.until(f"{ground} !== {light[0]!r}")
    dark = (page.js(ground), page.js(ink))
    assert dark[1] != light[1], "charts too"
    page.click("#theme")
    assert (page.text("#theme"), (page.js(ground), page.js(ink))) == ("Theme: light", light)
    page.click("#theme")
    assert (page.text("#theme"), (page.js(ground), page.js(ink))) == ("Theme: dark", dark)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_all_of_it_can_be_reached_by_keys(show: Show) -> None:
    page = show(models.sound())
    page.do("scrollTo(0, 0); document.activeElement.blur()")
    reached = []
    for _ in range(60):
        page.keys(Keys.TAB)
        where = "document.activeElement"
        names = ("id", "dataset.sort", "getAttribute('role')", "className", "tagName")
        reached.append(page.js(" || ".join(f"{where}.{name}" for name in names)))
        width = page.js(f"getComputedStyle({where}).outlineWidth")
        assert width != "0px", f"no focus to be seen on {reached[-1]}"
        if reached[-1] == "leaf-detail":
            break
    wanted = ["skip", "theme", "leaf-search", "leaf-filter", "grid", "path", "l2_norm", "leaf-detail"]
    assert [name for name in wanted if name not in reached] == []
    page.do("document.querySelector('#leaf-table .scroller').focus()")
    page.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    page.until("document.querySelector('#leaf-table .active')?.dataset.index === '1'")
    active = page.js("document.querySelector('#leaf-table .scroller').getAttribute('aria-activedescendant')")
    assert page.js("document.getElementById(arguments[0]).dataset.index", active) == "1"
    page.do("document.querySelector('#leaf-table [data-sort=min]').focus()")
    page.keys(Keys.ENTER)
    page.until("document.querySelector('#leaf-table [aria-sort=descending]')?.textContent === 'Min'")


def test_it_prints(show: Show) -> None:
    page = show(models.sound())
    pdf = base64.b64decode(page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", pdf)) > 1
    page.do("dispatchEvent(new Event('beforeprint'))")
    rows = page.rows("#leaf-table", 0)
    assert len(rows) == 100, "rows are there without scrolling"
    assert "and 195 more" in page.text("#leaf-table")
    assert page.js("document.documentElement.dataset.theme") == "light"
    page.do("dispatchEvent(new Event('afterprint'))")
    assert page.js("document.documentElement.dataset.theme") == "auto"


def test_many_leaves_stay_usable(show: Show, capsys: pytest.CaptureFixture[str]) -> None:
    page = show(models.many(MANY))
    assert page.complaints() == []
    assert page.js("document.querySelectorAll('#leaf-table .rows .row').length") < 60
    assert page.js("document.querySelectorAll('#treemap-chart svg path').length") < 3000
    timed = {}
    search = (
        "const [words, done] = arguments; const t = performance.now();"
        "const s = document.getElementById('leaf-search'); s.value = words;"
        "const c = document.getElementById('leaf-count'); c.textContent = '';"
        "const seen = (_, o) => { o.disconnect(); done(performance.now() - t); };"
        "new MutationObserver(seen).observe(c, { childList: true });"
        "s.dispatchEvent(new Event('input'));"
    )
    for words in ("expert_17 kernel_3", "block_3/expert_99/kernel_30"):
        timed[words] = page.driver.execute_async_script(search, words) / 1000
        assert len(page.rows("#leaf-table")) > 0
    page.driver.execute_async_script(search, "")
    sort = (
        "const done = arguments[0]; const t = performance.now(); document.querySelector('[data-sort=mean]').click();"
        "const w = () => document.querySelector('[aria-sort=descending]')?.textContent === 'Mean'"
        " ? done(performance.now() - t) : setTimeout(w, 5); w();"
    )
    timed["sort"] = page.driver.execute_async_script(sort) / 1000
    page.do("document.querySelector('#leaf-table .scroller').focus()")
    page.keys(Keys.END)
    page.until("document.querySelector('#leaf-table .active')")
    shown = min(MANY, 550_000)
    assert page.js("Number(document.querySelector('#leaf-table .active').dataset.index)") == shown - 1
    with capsys.disabled():
        size = page.path.stat().st_size / 1e6
        said = ", ".join(f"{what!r} {seconds:.2f} s" for what, seconds in timed.items())
        print(f"\n{MANY} leaves: {size:.1f} MB, open in {page.seconds:.1f} s, {said}")
    assert max(timed.values()) < 30


# Of `regrow report` itself, over what other libraries wrote, with what the page then has.
WRITTEN = {
    "mesh": (["orbax/md8_ocdbt_zarr3/ckpt"], "table.mesh"),
    "steps": (["orbax/manager_default/ckpt"], "#steps-table .row"),
    "dtypes": (["flax/all_dtypes.msgpack"], "#shares-dtype svg"),
    "other": (["equinox/model_and_opt.eqx", "flax/all_dtypes.msgpack"], "#comparison-0-table .rows .row"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_pages_of_the_command_open(driver: webdriver.Chrome, tmp_path: Path, name: str) -> None:
    paths, wanted = WRITTEN[name]
    out = tmp_path / "report.html"
    subprocess.run(
        [os.environ["REGROW_COMMAND"], "report", *(FIXTURES / path for path in paths), "-o", out], check=True
    )
    page = Page(driver, out)
    assert page.js("document.documentElement.dataset.state") == "ready"
    assert page.complaints() == []
    assert page.requests() <= {out.as_uri()}
    assert page.texts(wanted) != []
    assert "do not cover all of it" in page.text("#summary .verdict")
