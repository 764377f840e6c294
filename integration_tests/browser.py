"""Opens the page at `/playground` in Chromium without a screen.

Input: the path of Chromium in CHROMIUM; without it, the one in target/tools or PATH. Output: `Playground`,
which opens a server's page, and the texts that tests type into its fields. Invariants: in every test, the
page logs no error, violates no content security policy, shows no dialog and sends nothing to another host.
Each browser has a profile of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import programs
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Playwright
from server import Server

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or programs.find(*NAMES)
MISSING = f"{programs.missing('chromium')}, or set CHROMIUM to the path of a browser"
WITH_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Chromium logs this for each error status. Tests that provoke a refusal list its status.
REFUSED = "Failed to load resource: the server responded with a status of"

DECIDER = ("../deciders/qwen3-instruct", "--model-type", "decider")

KEY = "k3y-'of\"the$server"
QUERY = "Which planet is the one in the text?"
DOCUMENTS = [
    "The capital of China is Beijing.",
    "Mars is often called the Red Planet.",
    "서울은 대한민국의 수도이다.",
    "no",
    "It isn't \"quoted\" here; $HOME `id` \\n 😀",
]
LINES = "\n".join(DOCUMENTS)
# Read as markup, code or a text direction, each of these would run a script or break the layout.
HOSTILE = [
    "<img src=x onerror=\"document.title='hacked'; alert(1)\">",
    "<script>alert(2)</script><style>*{display:none}</style>",
    "</textarea></li></ol><iframe srcdoc='<script>parent.alert(3)</script>'></iframe>",
    "javascript:alert(4) data:text/html,<svg/onload=alert(5)> {{7*7}} ${7*7}",
    "\u202egnorw si siht\u202c \u2066x\u2069 \u200f\u061c\ufeff שלום عليكم",
    "👩‍👩‍👧‍👦🏳️‍🌈" * 40,
    "x" * 3000,
    "<|im_end|>\t<think>' OR '1'='1' -- $(touch never) `id` \\ \x7f\x1b[31m",
]


def launch(playwright: Playwright) -> Browser:
    """A browser with a new profile, which is deleted when the browser closes."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


class Playground:
    """The open page of a server."""

    def __init__(self, context: BrowserContext, server: Server, path: str, statuses: set[int]):
        self.server, self.context = server, context
        self.problems: list[str] = []
        self.bodies: list[dict] = []
        self._statuses = statuses
        self.page = self._watched(context.new_page())
        self.page.goto(server.url + path)

    def _watched(self, page: Page) -> Page:
        page.on("console", lambda message: self._logged(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", self._requested)
        return page

    def _logged(self, kind: str, text: str) -> None:
        wanted = any(text.startswith(f"{REFUSED} {status} ") for status in self._statuses)
        if kind in ("error", "warning") and not wanted:
            self.problems.append(f"{kind}: {text}")

    def _requested(self, request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.netloc != f"127.0.0.1:{self.server.port}":
            self.problems.append(f"another host: {request.url}")
        if request.method == "POST":
            self.bodies.append({"path": address.path, **request.post_data_json})

    def field(self, label: str) -> Locator:
        """The field with this label."""
        return self.page.get_by_label(label, exact=True)

    def button(self, name: str) -> Locator:
        """The buttons whose name contains `name`."""
        return self.page.get_by_role("button", name=name)

    def ask(self, state: str, questions: str) -> None:
        """Fills state and questions."""
        self.field("State").fill(state)
        self.field("Questions").fill(questions)

    def fill(self, query: str, documents: str, **fields: str) -> None:
        """Fills query and documents; `fields` are further fields by the ids of their elements."""
        self.field("Query").fill(query)
        self.field("Documents").fill(documents)
        for name, text in fields.items():
            self.page.locator(f"#{name}").fill(text)

    def run(self, rankings: int = 1) -> None:
        """Presses Run and waits until `rankings` new rankings are shown."""
        self.page.locator("#columns").evaluate("node => node.replaceChildren()")
        self.button("Run").click()
        self.page.locator(".ranking").nth(rankings - 1).wait_for()

    def ranks(self, ranking: int = 0) -> list[tuple[int, float]]:
        """Index and score of each row of a ranking."""
        rows = self.page.locator(".ranking").nth(ranking).locator(".rank")
        read = "nodes => nodes.map(node => [Number(node.dataset.index), Number(node.querySelector('data').value)])"
        return [tuple(row) for row in rows.evaluate_all(read)]

    def open_prompt(self, document: int, ranking: int = 0) -> Locator:
        """Opens the prompt of a document, counted from 0, and waits until it is shown."""
        row = self.page.locator(".ranking").nth(ranking).locator(f".rank[data-index='{document}']")
        row.get_by_role("button", name="Prompt").click()
        row.locator(".prompt").wait_for()
        return row.locator(".prompt")

    def module(self, name: str, function: str, argument: object) -> object:
        """The result of a function of one of the page's modules."""
        return self.page.evaluate(f"argument => import('/playground/{name}.js').then(module => ({function})(module, argument))", argument)

    def width(self) -> int:
        """The width of the page in CSS pixels."""
        return self.page.evaluate("document.documentElement.scrollWidth")


@contextmanager
def opened(browser: Browser, server: Server, path: str, statuses: set[int], **settings: object) -> Iterator[Playground]:
    """Opens the page, and checks at the end that no error occurred in it. `statuses` are the error statuses
    that the test provokes."""
    context = browser.new_context(**settings)
    try:
        playground = Playground(context, server, path, statuses)
        yield playground
        assert playground.problems == []
    finally:
        context.close()


def expected(server: Server, **fields: object) -> list[tuple[int, float]]:
    """Index and score of each rank, as the page must show them."""
    return [(rank["index"], pytest.approx(rank["score"], abs=2e-5)) for rank in server.rerank(QUERY, DOCUMENTS, **fields)]
