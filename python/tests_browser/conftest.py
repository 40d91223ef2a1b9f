"""A headless Chromium, and the pages that it opens: models go through the example ``page`` of
regrow-report.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")

# Nothing that would go to a network by itself, and no room in /dev/shm taken.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)

READY_SECONDS = 120


class Page:
    """A page that is open."""

    def __init__(self, driver: webdriver.Chrome, path: Path) -> None:
        self.driver, self.path = driver, path
        driver.get_log("browser")
        driver.get_log("performance")
        started = time.monotonic()
        driver.get(path.as_uri())
        self.until("document.documentElement.dataset.state !== 'reading'")
        self.seconds = time.monotonic() - started

    def js(self, script: str, *arguments: Any) -> Any:
        """The value of an expression."""
        return self.driver.execute_script(f"return ({script})", *arguments)

    def do(self, script: str, *arguments: Any) -> None:
        self.driver.execute_script(script, *arguments)

    def until(self, condition: str) -> None:
        """Waits for a condition of the page."""
        end = time.monotonic() + READY_SECONDS
        while not self.js(condition):
            assert time.monotonic() < end, f"still not: {condition}"
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        return self.js("[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def text(self, selector: str) -> str:
        return "\n".join(self.texts(selector))

    def click(self, selector: str) -> None:
        self.do("document.querySelector(arguments[0]).click()", selector)

    def keys(self, *keys: str) -> None:
        """Types, as a person does: into the focused element."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def rows(self, table: str, column: int = 0) -> list[str]:
        """What the rows in sight say in a column, from the top."""
        return self.js(
            "[...document.querySelectorAll(arguments[0] + ' .rows .row')]"
            ".map((row) => row.children[arguments[1]].textContent)",
            table,
            column,
        )

    def search(self, words: str) -> None:
        self.do(
            "const s = document.getElementById('leaf-search'); s.value = arguments[0];"
            "document.getElementById('leaf-count').textContent = ''; s.dispatchEvent(new Event('input'))",
            words,
        )
        self.until("document.getElementById('leaf-count').textContent !== ''")

    def complaints(self) -> list[str]:
        """What the browser's console says."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> set[str]:
        """All addresses that the page has asked for."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    driver = chromium(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


def chromium(profile: Path) -> webdriver.Chrome:
    """A browser with an empty page."""
    if CHROMIUM is None or CHROMEDRIVER is None:
        pytest.exit("no chromium or chromedriver on PATH; on Debian: apt install chromium chromium-driver", 1)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.set_script_timeout(READY_SECONDS)
    # Away from the browser's own first page, which loads a lot.
    driver.get("about:blank")
    time.sleep(1)
    return driver


def write(model: Any, path: Path) -> Path:
    """Has the page of a model written."""
    with path.open("wb") as out:
        subprocess.run([os.environ["REGROW_REPORT_PAGE"]], input=json.dumps(model).encode(), stdout=out, check=True)
    return path


@pytest.fixture
def show(driver: webdriver.Chrome, tmp_path: Path) -> Callable[[Any], Page]:
    """Opens the page of a model."""
    return lambda model: Page(driver, write(model, tmp_path / "report.html"))
