"""Takes the pictures of the documentation from pages of `regrow report`: into docs/images."""

from __future__ import annotations

import base64
import io
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import models
from conftest import Page, chromium, write
from PIL import Image

IMAGES = Path(__file__).parents[2] / "docs/images"
WIDTH, HEIGHT = 1240, 5000
"""The whole page is in view: a capture beyond the view draws charts again, without a width."""
MARGIN = 14


@dataclass(frozen=True)
class Picture:
    """The sections of a page from `first` to `last`, after some clicks."""

    name: str
    model: Callable[[], models.Model]
    first: str
    last: str
    prepare: Callable[[Page], None] = lambda page: None


def dark_leaf(page: Page) -> None:
    for _ in range(2):
        page.click("#theme")  # auto, light, dark
    page.click("#leaf-table [data-index='3']")
    page.until("document.querySelector('#leaf-detail .histogram svg')")


def inside_params(page: Page) -> None:
    page.click("#treemap-list li:nth-child(2) button")


PICTURES = (
    Picture("report", models.sound, "body", "#bytes"),
    Picture("report-damage", models.damaged, "#summary", "#findings"),
    Picture("report-treemap", models.sound, "#bytes", "#bytes", inside_params),
    Picture("report-dark", models.sound, "#leaves", "#leaves", dark_leaf),
    Picture("report-devices-steps", models.sound, "#shardings", "#steps"),
    Picture("report-diff", models.compared, "#comparison-0", "#comparison-0"),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = chromium(folder / "profile")
        try:
            screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            for picture in PICTURES:
                page = Page(driver, write(picture.model(), folder / "report.html"))
                picture.prepare(page)
                time.sleep(2)  # charts move until they are drawn
                shot = Image.open(io.BytesIO(taken(page, picture))).convert("RGB")
                # 256 colours are enough, and a third of the bytes.
                shot.quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{picture.name}.png", optimize=True)
        finally:
            driver.quit()


def taken(page: Page, picture: Picture) -> bytes:
    """The picture as PNG."""
    edge = "document.querySelector(arguments[0]).getBoundingClientRect().{} + window.scrollY"
    top, bottom = page.js(edge.format("top"), picture.first), page.js(edge.format("bottom"), picture.last)
    top, bottom = max(0, top - MARGIN), bottom + MARGIN
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
    shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    main()
