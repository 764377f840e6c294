"""The page at `/docs`, as a browser shows it."""

import re

import pytest
from browser import WITH_CHROMIUM
from playwright.sync_api import expect

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@WITH_CHROMIUM
@pytest.mark.parametrize("settings", [{}, PHONE], ids=["screen", "phone"])
def test_the_main_routes_come_first_and_a_phone_can_read_them(visit, short, settings):
    shown = visit(short, "/docs/", **settings)
    page = shown.page
    expect(page.locator(".opblock-tag a").first).to_have_text("Re-rank")
    expect(page.locator(".opblock .opblock-summary-path").first).to_have_text("/rerank")
    assert shown.width() <= page.viewport_size["width"]
    # A route opens under the finger, and its example does not widen the page.
    page.locator(".opblock-summary-control").first.click()
    page.get_by_role("button", name="Try it out").first.wait_for()
    assert shown.width() <= page.viewport_size["width"]
    page.get_by_role("link", name="← Playground").click()
    # The page adds the model's name when it knows it.
    expect(page).to_have_title(re.compile("^Playground"))
