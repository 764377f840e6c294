"""Makes the pictures of the page at `/playground` in `docs/`.

Usage: `.venv/bin/python integration_tests/screenshot.py`, after `make integration` once. Input: the
development build, or the binary in TEXT_EMBEDDINGS_ROUTER, with the demonstration model that it carries.
Output: `docs/playground.png` (a ranking with a prompt), `docs/playground-dark.png` (two instructions) and
`docs/playground-phone.png`.
"""

from browser import Playground, launch, opened
from playwright.sync_api import sync_playwright
from server import DEMO, ROOT, Server

SECOND = "Find sentences about food and rivers."


def prompt(page: Playground) -> None:
    """A ranking with the prompt of its best document."""
    page.run()
    page.button("Prompt of document").first.click()
    page.page.locator(".prompt").wait_for()


def comparison(page: Playground) -> None:
    """Two rankings side by side."""
    page.field("Compare with a second instruction").check()
    page.field("Instruction B").fill(SECOND)
    page.run(2)


def ranking(page: Playground) -> None:
    """A ranking; a phone shows only its beginning."""
    page.run()
    page.page.locator(".ranking").scroll_into_view_if_needed()


def main() -> None:
    """Takes all pictures."""
    pictures = [
        ("playground", prompt, "light", (1280, 940)),
        ("playground-dark", comparison, "dark", (1280, 900)),
        ("playground-phone", ranking, "light", (360, 740)),
    ]
    with Server(DEMO) as server, sync_playwright() as playwright:
        browser = launch(playwright)
        for file, act, scheme, (width, height) in pictures:
            settings = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "reduced_motion": "reduce"}
            with opened(browser, server, "/playground", set(), **settings) as page:
                page.page.locator("#model code").wait_for()
                act(page)
                page.page.evaluate("document.activeElement.blur()")
                if width > 400:
                    page.page.evaluate("scrollTo(0, 0)")
                page.page.screenshot(path=ROOT / f"docs/{file}.png")
        browser.close()


if __name__ == "__main__":
    main()
