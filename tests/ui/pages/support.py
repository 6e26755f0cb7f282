"""Pages of a directory: served, and read as a browser would read them."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.storage.store import OwnerAccess
from recovery.ui.facts.flows import Flows, FlowSource
from recovery.ui.server.app import application
from recovery.ui.server.service import UiService, UiSettings

FILES = OwnerAccess()
AXE = "node_modules/axe-core/axe.min.js"


@contextmanager
def served(*directories: Path, place: str | None = None, access: OwnerAccess = FILES, **settings):
    """The address of the pages of directories, until the block ends."""
    flows = Flows([FlowSource(each, access, place) for each in directories])
    service = UiService(lambda admission: application(flows, admission), UiSettings(**settings), lambda _line: None)
    try:
        yield service.url
    finally:
        service.stop()
        flows.release()


@contextmanager
def chromium():
    """A real browser, by way of Playwright; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = os.environ.get("RECOVERY_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no chromium on PATH, and RECOVERY_CHROMIUM names none")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def axe_script() -> str | None:
    """The checks of axe-core, from npm; None where RECOVERY_AXE names no folder that has them."""
    folder = os.environ.get("RECOVERY_AXE")
    return None if folder is None else (Path(folder) / AXE).read_text(encoding="utf-8")


class Tab:
    """A tab that remembers what went wrong in it, and what it asked for."""

    def __init__(self, browser, base: str, *, width: int = 1280, scheme: str = "light"):
        self.base = base
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.wrong, self.asked = [], []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: str):
        """Load a page of the server."""
        return self.page.goto(self.base + path)

    def text(self, selector: str) -> str:
        """What an element says."""
        return self.page.locator(selector).inner_text().strip()

    def problems(self) -> list[str]:
        """What went wrong, and what was asked of another host."""
        return [*self.wrong, *(url for url in self.asked if not url.startswith((self.base, "data:")))]
