"""A headless Chromium of the system's packages, driven by Selenium: for the dashboard's tests and its pictures.

Never: download a browser or its driver: ``./run`` installs both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
_DRIVERS = ("chromedriver", "/usr/bin/chromedriver", "/usr/lib/chromium-browser/chromedriver")


def _found(names: tuple[str, ...]) -> str:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise FileNotFoundError(f"none of {', '.join(names)} is installed; ./run test installs them")


@contextlib.contextmanager
def running_browser() -> Iterator[webdriver.Chrome]:
    """Start a browser; end it afterwards."""
    options = webdriver.ChromeOptions()
    options.binary_location = _found(_BROWSERS)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = _found(_DRIVERS)
    env = {name: value for name, value in os.environ.items() if name.lower() not in ("http_proxy", "https_proxy")}
    browser = webdriver.Chrome(options=options, service=Service(driver, env=env))
    browser.set_script_timeout(120)
    try:
        yield browser
    finally:
        browser.quit()


def show(browser: webdriver.Chrome, url: str, *, width: int = 1440, height: int = 900, dark: bool = False) -> None:
    """Open a page afresh, in a window of a size, for somebody whose system is light or dark."""
    browser.get("about:blank")  # else another fragment of the same address would be no new page
    resize(browser, width, height)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get(url)


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Let the page have a size, in its own pixels."""
    size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
