"""The dashboard in a headless Chromium: queries on Spark, each action driven in the page, and a driver that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import headgate
from headgate.checkpoint.storage import CheckpointStorage
from headgate.monitor.endpoint.of_process import Endpoint
from local.browser import running_browser, show
from local.ports import free_ports
from tests.real.running_queries import is_running, numbers, stop_all, wait_until, written
from tests.unit.monitor.endpoint.documents import RecordedQuery

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with running_browser() as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_runs_on(browser: Chrome) -> Iterator[None]:
    yield
    browser.get("about:blank")
    stop_all()


class Page:
    """What a test sees of the page, and does to it."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def text(self, id_: str) -> str:
        return self.browser.find_element(By.ID, id_).text

    def wait(self, condition: Callable[[], Any]) -> Any:
        """Wait for something to be so; the page replaces elements meanwhile."""

        def holds() -> Any:
            try:
                return condition()
            except Exception as error:
                if type(error).__module__.startswith("selenium"):
                    return None
                raise

        return wait_until(holds)

    def wait_for_text(self, id_: str, *parts: str) -> str:
        self.wait(lambda: all(part in self.text(id_) for part in parts))
        return self.text(id_)

    def script(self, code: str) -> Any:
        return self.browser.execute_script(code)

    def click(self, selector: str) -> None:
        self.wait(lambda: self.browser.find_element(By.CSS_SELECTOR, selector).is_enabled())
        self.browser.find_element(By.CSS_SELECTOR, selector).click()

    def fill(self, selector: str, value: str) -> None:
        field = self.browser.find_element(By.CSS_SELECTOR, selector)
        field.clear()
        field.send_keys(value)

    def keys(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()

    def toast(self, part: str) -> None:
        """Wait for a message on the page."""
        self.wait(lambda: part in self.text("toasts"))

    def focus(self) -> str:
        """Return the id of what has the focus, or its text."""
        return str(self.script("const a = document.activeElement; return a.id || a.name || a.textContent.trim()"))

    def opened(self) -> str | None:
        """Return the id of the dialog that is open."""
        found: str | None = self.script("return document.querySelector('dialog[open]')?.id ?? null")
        return found

    def mistakes(self) -> list[str]:
        """Return what the browser complained about: scripts that failed, policies that were violated."""
        return [each["message"] for each in self.browser.get_log("browser") if each["level"] == "SEVERE"]


@pytest.fixture
def page(browser: Chrome) -> Page:
    browser.get_log("browser")
    return Page(browser)


def started(spark: SparkSession, folder: Path, name: str = "numbers", **options: Any) -> headgate.ContinuousQuery:
    """Start a query that does not end, of one slot and four splits, and wait until it reads."""
    writer = written(numbers(spark), "noop", 1, checkpointLocation=folder / "checkpoint", **options)
    query = writer.queryName(name).start()
    wait_until(lambda: is_running(query) and query.status["rowsIn"] > 0, query)
    return query


def test_the_page_shows_a_query_and_stays_live(spark: SparkSession, tmp_path: Path, page: Page) -> None:
    query = started(spark, tmp_path)
    show(page.browser, query.dashboard())
    page.wait_for_text("state", "running")
    assert page.text("name") == "numbers"
    assert page.text("why")
    assert "token" not in page.script("return location.href")
    page.wait(lambda: page.script("return document.querySelectorAll('#graph .node').length") >= 3)
    page.wait(lambda: page.script("return document.querySelectorAll('#slots .cell').length") == 4)
    page.wait(lambda: page.script("return document.querySelectorAll('#split-table tbody tr').length") == 4)
    page.wait(lambda: page.script("return document.querySelectorAll('#cp-table tbody tr').length") >= 2)
    seen = page.text("figures")
    assert "Rows in" in seen and "Last checkpoint" in seen
    page.wait(lambda: page.text("figures") != seen)
    newest = "return Number(document.querySelector('#cp-table tbody td').textContent)"
    before = page.script(newest)
    page.wait(lambda: page.script(newest) > before)
    assert page.mistakes() == []


def test_every_action_in_the_page(spark: SparkSession, tmp_path: Path, page: Page) -> None:
    query = started(spark, tmp_path)
    show(page.browser, query.dashboard())
    page.wait_for_text("state", "running")

    page.click("#act-checkpoint")
    page.toast("is complete.")

    page.click("#act-savepoint")
    page.fill("#d-savepoint [name=location]", str(tmp_path / "savepoint"))
    page.click("#d-savepoint [type=submit]")
    page.toast(f"is written to {tmp_path / 'savepoint'}.")
    assert CheckpointStorage(str(tmp_path / "savepoint")).holds_savepoint()

    page.click("#act-savepoint")  # its folder is not overwritten: the query's own words are on the page
    page.fill("#d-savepoint [name=location]", str(tmp_path / "savepoint"))
    page.click("#d-savepoint [type=submit]")
    page.toast("There is a savepoint already")

    page.click("#act-rescale")
    assert page.script("return document.querySelector('#d-rescale input').max") == "128"
    page.fill("#d-rescale [name=parallelism]", "2")
    page.click("#d-rescale [type=submit]")
    page.toast("goes on with 2 slots")
    wait_until(lambda: is_running(query), query)
    page.wait_for_text("about", "2 slots")
    assert len(query.status["slots"]) == 2

    page.click("#act-stop")
    assert page.text("t-stop") == "Stop the query numbers?"
    page.click("#d-stop [value=cancel]")
    assert page.opened() is None and query.isActive
    page.click("#act-stop")
    page.click("#d-stop [type=submit]")
    page.toast("The query has ended.")
    assert not query.isActive and query.exception() is None
    page.wait_for_text("state", "ended")
    page.wait(lambda: not page.browser.find_element(By.ID, "act-checkpoint").is_enabled())
    (refused,) = page.mistakes()  # the one that the page showed
    assert "409" in refused


@pytest.mark.parametrize("how", ["savepoint", "drain"])
def test_the_other_ways_to_stop(spark: SparkSession, tmp_path: Path, page: Page, how: str) -> None:
    query = started(spark, tmp_path)
    show(page.browser, query.dashboard())
    page.wait_for_text("state", "running")
    page.click("#act-stop")
    page.click(f"#d-stop [value={how}]")
    folder = page.browser.find_element(By.CSS_SELECTOR, "#d-stop [name=location]")
    assert folder.is_displayed() == (how == "savepoint")
    if how == "savepoint":
        page.click("#d-stop [type=submit]")
        assert page.opened() == "d-stop", "without a folder nothing is stopped"
        folder.send_keys(str(tmp_path / "savepoint"))
    page.click("#d-stop [type=submit]")
    page.toast("is suspended" if how == "savepoint" else "is drained")
    assert not query.isActive
    assert CheckpointStorage(str(tmp_path / "savepoint")).holds_savepoint() == (how == "savepoint")


def test_an_action_with_the_keyboard_only(spark: SparkSession, tmp_path: Path, page: Page) -> None:
    query = started(spark, tmp_path)
    show(page.browser, query.dashboard())
    page.wait_for_text("state", "running")
    page.wait(lambda: page.browser.find_element(By.ID, "act-stop").is_enabled())

    tools = ["act-checkpoint", "act-savepoint", "act-rescale", "act-stop", "theme", "help"]
    order = [""]
    while order[-1] != tools[-1]:
        assert len(order) < 10, order
        page.keys(Keys.TAB)
        order.append(page.focus())
        outline = page.script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", f"the focus on {order[-1]} cannot be seen"
    assert [each for each in order if each not in ("", "queries")] == ["Skip to the figures", *tools]

    page.keys("?")
    assert page.opened() == "d-help"
    page.keys(Keys.ESCAPE)
    page.keys("s")
    assert (page.opened(), page.focus()) == ("d-savepoint", "location")
    page.keys(str(tmp_path / "savepoint"), Keys.ENTER)
    page.toast("is written to")
    assert "is written to" in page.text("live"), "a screen reader says so, too"

    page.keys("x")
    assert (page.opened(), page.focus()) == ("d-stop", "Cancel"), "a stroke too many must not stop the query"
    page.keys(Keys.TAB, Keys.ENTER)
    page.toast("The query has ended.")
    assert not query.isActive


def test_without_the_token_the_page_only_reads(spark: SparkSession, tmp_path: Path, page: Page) -> None:
    query = started(spark, tmp_path)
    address, _, fragment = query.dashboard().partition("#")
    token = fragment.removeprefix("token=").partition("&")[0]
    with urlopen(address) as answer:
        assert token.encode() not in answer.read()

    show(page.browser, address)
    page.script("sessionStorage.clear()")
    page.wait_for_text("state", "running")
    page.click("#act-checkpoint")
    assert page.opened() == "d-token"
    page.fill("#d-token [name=token]", "wrong")
    page.click("#d-token [type=submit]")
    page.toast("The token is not this driver's.")
    page.wait(lambda: page.browser.find_element(By.ID, "lock").is_displayed())

    page.click("#lock")
    page.fill("#d-token [name=token]", token)
    page.click("#d-token [type=submit]")
    page.click("#act-checkpoint")
    page.toast("is complete.")


def test_several_queries_are_one_page(spark: SparkSession, tmp_path: Path, page: Page) -> None:
    one = started(spark, tmp_path / "one", "evens", slots="threads")
    two = started(spark, tmp_path / "two", "odds", slots="threads")
    assert one.dashboard().partition("#")[0] == two.dashboard().partition("#")[0]
    show(page.browser, one.dashboard())
    page.wait_for_text("name", "evens")
    page.wait(lambda: page.browser.find_element(By.ID, "queries").is_displayed())
    Select(page.browser.find_element(By.ID, "queries")).select_by_value(two.id)
    page.wait_for_text("name", "odds")
    page.click("#act-stop")
    assert page.text("t-stop") == "Stop the query odds?"
    page.click("#d-stop [type=submit]")
    page.wait_for_text("state", "ended")
    assert one.isActive and not two.isActive


# How the page looks and works, whatever the query


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[RecordedQuery], str]]:
    """Return a function that serves a query and returns the page's address with the token."""
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    made = []

    def serve(query: RecordedQuery) -> str:
        endpoint = Endpoint("127.0.0.1", 0)
        made.append(endpoint)
        endpoint.registry.enter(query)
        return f"{endpoint.url}#token={endpoint.token}"

    yield serve
    for endpoint in made:
        endpoint.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1440])
def test_phone_and_desk_light_and_dark(
    recorded: Callable[[RecordedQuery], str], page: Page, width: int, dark: bool
) -> None:
    """Nothing is wider than the window, however long names are; texts stand out from what is below them."""
    name = "a-query-whose-name-is-longer-than-anybody-would-like-it-to-be-" * 2
    show(page.browser, recorded(RecordedQuery(name, splits=30, slots=5)), width=width, dark=dark)
    page.wait_for_text("state", "running")
    page.wait(lambda: page.script("return document.querySelectorAll('#slots .cell').length") == 30)
    assert page.script("return document.documentElement.scrollWidth") <= width
    heights = page.script("return [...document.querySelectorAll('.actions button')].map(button => button.clientHeight)")
    assert min(heights) >= 30
    assert is_dark(page) == dark
    assert page.script(CONTRASTS) == []
    assert page.mistakes() == []


CONTRASTS = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const light = (color) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return a < 250 ? null : 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const below = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const found = light(getComputedStyle(at).backgroundColor);
    if (found != null) return found;
  }
};
const poor = [];
for (const node of document.querySelectorAll('#all *, header *')) {
  if (node.closest('svg, select, :disabled') || !node.offsetParent) continue;
  if (![...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim())) continue;
  const [one, two] = [light(getComputedStyle(node).color), below(node)].sort((a, b) => b - a);
  if ((one + 0.05) / (two + 0.05) < 4.5) poor.push(`${node.className}: ${node.textContent.slice(0, 30)}`);
}
return poor;
"""
"""Texts whose contrast is below what WCAG 2.2 asks for (AA, 4.5 to 1)."""


def is_dark(page: Page) -> bool:
    shade = page.script("return getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")
    return sum(int(each) for each in shade) < 3 * 100


def test_the_theme_is_chosen_and_kept(recorded: Callable[[RecordedQuery], str], page: Page) -> None:
    address = recorded(RecordedQuery())
    show(page.browser, address, dark=True)
    page.wait_for_text("state", "running")
    assert is_dark(page)
    page.keys("t")
    assert not is_dark(page)
    page.browser.refresh()
    page.wait_for_text("state", "running")
    assert not is_dark(page)
    page.keys("t")
    assert is_dark(page)
    page.click("#theme")
    assert is_dark(page), "as the system has it"


def test_a_thousand_splits_cost_no_more_with_time(recorded: Callable[[RecordedQuery], str], page: Page) -> None:
    """Elements are made once: a snapshot later there are as many; and the table is read in pieces."""
    query = RecordedQuery(splits=1000, slots=40)
    show(page.browser, recorded(query))
    page.wait(lambda: page.script("return document.querySelectorAll('#slots .cell').length") == 1000)
    assert page.text("split-count") == "25 of 1,000 splits"
    count = "return document.querySelectorAll('*').length"
    before, foot = page.script(count), page.text("foot")
    for _ in range(3):
        query.now_ms += 1000
        page.wait(lambda: page.text("foot") != foot)  # noqa: B023
        foot = page.text("foot")
    assert page.script(count) <= before + 20, "but for the marks of an axis"
    page.click("#more")
    page.wait(lambda: page.text("split-count").startswith("125 of"))
    page.keys("/")
    page.keys("rides-99")
    page.wait(lambda: page.script("return document.querySelectorAll('#split-table tbody tr').length") == 11)
    assert page.focus() == "filter", "a character in a field is no shortcut"
    assert page.opened() is None


def test_shortcuts_can_be_switched_off(recorded: Callable[[RecordedQuery], str], page: Page) -> None:
    query = RecordedQuery()
    show(page.browser, recorded(query))
    page.wait_for_text("state", "running")
    page.keys("?")
    page.click("#keys-on")
    page.click("#d-help [type=submit]")
    page.keys("x")
    assert page.opened() is None
    page.click("#help")
    page.click("#keys-on")


DRIVER = """
import sys, time
from headgate.monitor.endpoint import of_process
from tests.unit.monitor.endpoint.documents import RecordedQuery

query = RecordedQuery()
assert of_process.serve(query, "127.0.0.1", int(sys.argv[1])) is not None
print("serving", flush=True)
while True:
    time.sleep(0.2)
    query.now_ms += 200
"""


def driver_process(port: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "serving\n"
    return process


def test_a_driver_that_is_gone_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    """Killed: the page says so and keeps what it has; started again at its address: the page goes on by itself."""
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    (port,) = free_ports(1)
    process = driver_process(port)
    try:
        show(page.browser, f"http://127.0.0.1:{port}/#token=any")
        page.wait_for_text("state", "running")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        page.wait_for_text("state", "driver gone")
        assert "The driver does not answer" in page.text("gone")
        assert not page.browser.find_element(By.ID, "act-stop").is_enabled()
        assert "Rows in" in page.text("figures")
        process = driver_process(port)
        page.wait_for_text("state", "running")
        page.wait(lambda: page.text("live") == "The driver answers again.")
        assert not page.browser.find_element(By.ID, "gone").is_displayed()
        assert page.browser.find_element(By.ID, "act-stop").is_enabled()
    finally:
        process.kill()
        process.wait()
