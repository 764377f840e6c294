"""The use of the page at `/playground`: hostile texts, errors, keyboards, phones, both colour schemes."""

import json
import re

import pytest
from browser import DECIDER, HOSTILE, KEY, LINES, QUERY, WITH_CHROMIUM, expected
from playwright.sync_api import expect
from server import MODELS, Server

pytestmark = WITH_CHROMIUM


class TestTexts:
    def test_hostile_texts_are_shown_as_text(self, visit, short):
        page = visit(short)
        page.field("Compare with a second instruction").check()
        page.fill(HOSTILE[0], json.dumps(HOSTILE), instruction=HOSTILE[1], second=HOSTILE[2])
        page.run(2)
        for ranking in (0, 1):
            rows = page.page.locator(".ranking").nth(ranking).locator(".rank .text")
            texts = rows.evaluate_all("nodes => nodes.map(node => node.textContent)")
            assert texts == [HOSTILE[index] for index, _ in page.ranks(ranking)]
            for document in range(len(HOSTILE)):
                page.open_prompt(document, ranking)
        page.page.get_by_text("This request as code").first.click()
        assert page.page.locator("#columns :is(script, style, iframe, img, svg, a)").count() == 0
        assert page.page.title().startswith("Playground")
        expect(page.page.locator("#form")).to_be_visible()

    def test_errors_are_sentences_and_text(self, visit, short):
        page = visit(short, statuses=[422])
        page.fill(QUERY, LINES, instruction=HOSTILE[0] * 20)
        page.button("Run").click()
        expect(page.page.locator("#problem")).to_contain_text("The server refused this: `instruction` is too long")
        page.fill(" ", LINES)
        page.button("Run").click()
        expect(page.page.locator("#problem")).to_have_text("Write a query first.")
        page.fill(QUERY, "\n".join(["a"] * 1001), instruction="")
        page.button("Run").click()
        expect(page.page.locator("#problem")).to_have_text("1,001 documents, but this server takes at most 1,000 in one request.")
        page.fill(QUERY, LINES)
        page.run()
        expect(page.page.locator("#problem")).to_be_hidden()

    def test_a_run_can_be_stopped(self, visit, server):
        page = visit(server)
        page.fill(QUERY, LINES)
        expect(page.button("Stop")).to_be_hidden()
        # The request stays open without an answer.
        page.page.route("**/rerank", lambda route: None)
        page.button("Run").click()
        page.button("Stop").click()
        expect(page.page.get_by_role("status")).to_have_text("Stopped.")
        expect(page.button("Stop")).to_be_hidden()
        page.page.unroute_all(behavior="ignoreErrors")
        page.run()
        assert page.ranks() == expected(server)

    def test_it_works_behind_a_proxy_with_a_path_prefix(self, visit, server):
        page = visit(server)
        expect(page.page.locator("#model code")).to_be_visible()

        def strip(route) -> None:
            route.fulfill(response=route.fetch(url=route.request.url.replace("/some/prefix/", "/")))

        page.page.route("**/*", lambda route: route.abort())
        page.page.route("**/some/prefix/**", strip)
        page.page.goto(f"{server.url}/some/prefix/playground")
        page.fill(QUERY, LINES)
        page.run()
        assert page.ranks() == expected(server)
        page.open_prompt(1)
        page.page.get_by_text("This request as code").click()
        expect(page.page.locator("pre[data-language=curl]")).to_contain_text(f"curl '{server.url}/some/prefix/rerank'")

    def test_a_server_that_is_gone_is_reported(self, visit):
        with Server("tied-bf16") as server:
            page = visit(server)
            page.fill(QUERY, LINES)
            page.run()
            server.stop()
            page.button("Run").click()
            expect(page.page.locator("#problem")).to_have_text("The server does not answer. Is it still running?")
        assert page.problems.pop().endswith("net::ERR_CONNECTION_REFUSED")


class TestUse:
    def test_by_keyboard_alone(self, visit, server):
        page = visit(server)
        expect(page.page.locator("#model code")).to_be_visible()
        keyboard = page.page.keyboard
        order = []
        while not order or order[-1] not in ("link", "body"):
            keyboard.press("Tab")
            order.append(page.page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
            outline = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", order
        fields = ["first-task", "query", "instruction", "compare", "documents", "open", "raw", "run", "example", "judged", "clear", "link"]
        assert order == ["Skip to the results", "API", *fields]
        for _ in fields[2:]:
            keyboard.press("Shift+Tab")
        expect(page.field("Query")).to_be_focused()
        keyboard.press("Control+A")
        keyboard.type(QUERY)
        for _ in range(3):
            keyboard.press("Tab")
        keyboard.press("Control+A")
        keyboard.insert_text(LINES)
        keyboard.press("Control+Enter")
        expect(page.page.locator(".rank")).to_have_count(5)
        wanted = expected(server)
        assert page.ranks() == wanted
        # After the fields come the three buttons that save the ranking, and the buttons of the first row.
        for _ in range(11):
            keyboard.press("Tab")
        relevant = page.button(f"Document {wanted[0][0]} is relevant")
        expect(relevant).to_be_focused()
        keyboard.press("Space")
        expect(relevant).to_have_attribute("aria-pressed", "true")
        expect(relevant).to_be_focused()
        expect(page.page.locator(".measures")).to_have_text("nDCG@10 1.000MRR 1.0001 relevant")
        for _ in ("Sentences", "Prompt"):
            keyboard.press("Tab")
        button = page.button(f"Prompt of document {wanted[0][0]}")
        expect(button).to_be_focused()
        keyboard.press("Space")
        expect(button).to_have_attribute("aria-expanded", "true")
        expect(page.page.locator(".prompt .piece.document")).to_be_visible()
        keyboard.press("Enter")
        expect(button).to_have_attribute("aria-expanded", "false")

    def test_questions_are_asked_by_keyboard_alone(self, visit, server):
        page = visit(server)
        expect(page.page.locator("#model code")).to_be_visible()
        keyboard = page.page.keyboard
        page.page.get_by_label("Rank for a query").focus()
        keyboard.press("ArrowRight")
        expect(page.page.get_by_label("Ask about a text")).to_be_checked()
        keyboard.press("Tab")
        expect(page.field("State")).to_be_focused()
        keyboard.press("Control+A")
        keyboard.type("It is late.")
        keyboard.press("Tab")
        expect(page.field("Questions")).to_be_focused()
        keyboard.press("Control+A")
        keyboard.type("It is late.\nWhen? | now | later")
        keyboard.press("Control+Enter")
        expect(page.page.locator(".neighbour")).to_have_count(4)
        assert page.bodies[-1]["path"] == "/v1/decisions" and page.bodies[-1]["input"] == "It is late."

    def test_every_field_and_button_has_a_name(self, visit, server):
        page = visit(server)
        page.field("Compare with a second instruction").check()
        page.fill(QUERY, LINES)
        page.run(2)
        page.open_prompt(0)
        tree = page.page.locator("body").aria_snapshot()
        roles = re.findall(r"- (textbox|checkbox|button|link|region|article|list)\b(.*)", tree)
        assert len(roles) > 25
        for role, rest in roles:
            assert role == "list" or re.match(r' "[^"]+"', rest) or rest.startswith(' "'), (role, rest)
        assert page.page.evaluate("document.documentElement.lang") == "en"
        assert page.page.locator("h1").count() == 1

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_has_enough_contrast_in_both_schemes(self, visit, served, short, scheme):
        page = visit(short, color_scheme=scheme, reduced_motion="reduce")
        page.field("Compare with a second instruction").check()
        page.fill(QUERY, f"{LINES}\n{'the planet. ' * 60}", second="Find the capital of a country in Asia.")
        page.run(2)
        page.open_prompt(5)
        page.page.get_by_text("This request as code").first.click()
        page.fill("", LINES)
        page.button("Run").click()
        expect(page.page.locator("#problem")).to_be_visible()
        contrasts = page.page.evaluate(CONTRASTS)
        assert len(contrasts) > 60
        assert [row for row in contrasts if row[0] < 4.5] == []
        for model in (("embedding-last",), ("seq-cls-3",), DECIDER):
            other = visit(served(*model), "/playground", color_scheme=scheme, reduced_motion="reduce")
            other.page.locator(".rank").first.wait_for()
            assert [row for row in other.page.evaluate(CONTRASTS) if row[0] < 4.5] == []
        background = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", background))) > 3 * 128
        assert light == (scheme == "light"), background
        assert page.page.locator(".fill").first.evaluate("node => getComputedStyle(node).animationName") == "none"

    # Larger letters stand for a wider font.
    @pytest.mark.parametrize(("width", "letters"), [(320, "100%"), (320, "115%"), (360, "100%")])
    def test_a_phone_is_wide_enough(self, visit, served, short, width, letters):
        phone = {"viewport": {"width": width, "height": 740}, "has_touch": True, "is_mobile": True}
        page = visit(short, **phone)
        page.page.evaluate("size => { document.documentElement.style.fontSize = size; }", letters)
        expect(page.page.locator("#model code")).to_be_visible()
        assert page.width() == width
        page.fill(HOSTILE[6], json.dumps(HOSTILE), instruction="")
        page.field("Compare with a second instruction").check()
        page.run(2)
        assert page.width() == width
        expect(page.page.locator(".ranking").first).to_be_in_viewport()
        for document in range(len(HOSTILE)):
            page.open_prompt(document)
        for code in page.page.get_by_text("This request as code").all():
            code.click()
        assert page.width() == width
        page = visit(served("tied-bf16", "--api-key", KEY), statuses=[401], **phone)
        expect(page.page.locator(".notice:visible")).to_have_count(1)
        assert page.width() == width
        for model in ("embedding-last", "seq-cls-3"):
            page = visit(served(model), **phone)
            page.field("Texts").fill("\n".join(HOSTILE))
            page.run()
            assert page.width() == width
        page = visit(served(*DECIDER), **phone)
        page.ask(HOSTILE[6], "\n".join([*HOSTILE, f"{HOSTILE[6]} | {HOSTILE[6]} | {HOSTILE[5]}"]))
        page.run()
        expect(page.page.locator(".rank").first).to_be_in_viewport()
        assert page.width() == width


# For each visible text: its contrast with its background by WCAG 2.2, and its first words.
CONTRASTS = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = parse(color).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      const [, , , alpha = 1] = parse(color);
      if (alpha === 1) return color;
      if (alpha !== 0) throw new Error(`half transparent: ${color}`);
    }
  };
  const contrast = (front, back) => {
    const [dark, light] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const rows = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement: node } = texts.currentNode;
    if (data.trim() && node.checkVisibility() && node.tagName !== "NOSCRIPT")
      rows.push([contrast(getComputedStyle(node).color, behind(node)), `${node.tagName}.${node.className}: ${data.slice(0, 40)}`]);
  }
  for (const field of document.querySelectorAll("textarea:not([hidden])"))
    for (const part of [null, "::placeholder"])
      rows.push([contrast(getComputedStyle(field, part).color, behind(field)), `${field.id} ${part}`]);
  return rows;
}"""


class TestSeveralModels:
    def test_each_is_tried_on_the_same_page(self, visit, tmp_path):
        models = {"org/embedder": "embedding-last", "reranker": "tied-bf16"}
        file = tmp_path / "models.toml"
        tables = [f'[models."{name}"]\nmodel-id = "{MODELS / model}"' for name, model in models.items()]
        file.write_text("\n".join(tables), encoding="utf-8")
        with Server(file) as server:
            page = visit(server, "/playground")
            choice = page.page.get_by_label("Model", exact=True)
            expect(choice.locator("option")).to_have_text(list(models))
            expect(page.page.locator("#model")).to_contain_text("org/embedder")
            choice.select_option("reranker")
            expect(page.page.locator("#model")).to_contain_text("reranker")
            assert page.page.url.endswith("/playground?model=reranker")
            # The example of the new kind, not the texts of the other one.
            expect(page.page.locator(".rank")).to_have_count(5)
            assert page.bodies[-1]["path"] == "/models/reranker/rerank"
            # Texts that were typed come along.
            page.fill(QUERY, LINES)
            choice.select_option("org/embedder")
            expect(page.page.locator("#model")).to_contain_text("org/embedder")
            expect(page.page.locator("#documents")).to_have_value(LINES)
            page.run()
            assert page.bodies[-1]["path"] == "/models/org%2Fembedder/embed"

            # Two models side by side; the second one takes no instruction.
            choice.select_option("reranker")
            expect(page.page.locator("#model")).to_contain_text("reranker")
            page.field("Compare with a second instruction or model").check()
            expect(page.field("Instruction B")).to_be_enabled()
            expect(page.field("Model B").locator("option")).to_have_text(["reranker again", "org/embedder"])
            page.field("Model B").select_option("org/embedder")
            expect(page.field("Instruction B")).to_be_disabled()
            page.fill(QUERY, LINES, instruction="Judge the planets.")
            before = len(page.bodies)
            page.run(2)
            # Of scores that look alike, the page fetches the raw scores too.
            sent = [body for body in page.bodies[before:] if body["path"].endswith("rerank") and "raw_scores" not in body]
            texts = {"query": QUERY, "texts": LINES.split("\n")}
            assert sent == [
                {"path": "/models/reranker/rerank", **texts, "instruction": "Judge the planets."},
                {"path": "/models/org%2Fembedder/rerank", **texts},
            ]
            answers = [server.post(f"/models/{name}/rerank", body).json() for name, body in (("reranker", sent[0]), ("org%2Fembedder", sent[1]))]
            for ranking, ranks in enumerate(answers):
                assert page.ranks(ranking) == [(rank["index"], pytest.approx(rank["score"], abs=2e-5)) for rank in ranks]
            expect(page.page.locator(".by")).to_have_text(["reranker · Judge the planets.", "org/embedder · No instruction"])
            # An embedding model reads no prompt of query and document.
            expect(page.button("Prompt of document")).to_have_count(5)
            before, after = ([rank["index"] for rank in ranks] for ranks in answers)
            moved = sum(one != other for one, other in zip(before, after, strict=True))
            expect(page.page.get_by_role("status")).to_have_text(f"Model B moves {moved} of 5 documents.")

    def test_the_page_of_a_model_offers_the_others(self, visit, tmp_path):
        models = {"org/embedder": "embedding-last", "reranker": "tied-bf16"}
        file = tmp_path / "models.toml"
        tables = [f'[models."{name}"]\nmodel-id = "{MODELS / model}"\naliases = ["{model}"]' for name, model in models.items()]
        file.write_text("\n".join(tables), encoding="utf-8")
        with Server(file) as server:
            for path, name in (("reranker", "reranker"), ("org/embedder", "org/embedder"), ("tied-bf16", "reranker")):
                page = visit(server, f"/models/{path}/playground")
                expect(page.page.locator("#model")).to_contain_text(name)
                expect(page.page.get_by_label("Model", exact=True)).to_have_value(name)
            page.page.get_by_label("Model", exact=True).select_option("org/embedder")
            expect(page.page.locator("#model")).to_contain_text("org/embedder")

    def test_one_model_offers_no_choice_and_needs_no_name(self, visit, server):
        page = visit(server, "/playground?model=other#{}")
        expect(page.page.locator("#model")).to_contain_text("tied-bf16")
        expect(page.page.locator("#models-field")).to_be_hidden()
