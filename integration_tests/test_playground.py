"""The page at `/playground`, driven in Chromium: everything that it shows comes from the server's answers."""

import ast
import csv
import io
import json
import math
import re
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import numpy
import programs
import pytest
import requests
from browser import DECIDER, DOCUMENTS, HOSTILE, KEY, LINES, QUERY, WITH_CHROMIUM, expected
from playwright.sync_api import expect
from server import MODELS, variables

pytestmark = WITH_CHROMIUM


class TestRanking:
    def test_it_is_the_one_of_rerank(self, visit, server):
        page = visit(server)
        page.fill(QUERY, LINES)
        page.run()
        assert page.bodies == [{"path": "/rerank", "query": QUERY, "texts": DOCUMENTS}]
        wanted = expected(server)
        assert page.ranks() == wanted
        rows = page.page.locator(".rank")
        expect(rows.locator(".text")).to_have_text([DOCUMENTS[index] for index, _ in wanted])
        expect(rows.locator(".place")).to_have_text([str(place + 1) for place in range(5)])
        expect(rows.locator(".origin")).to_have_text([f"document {index}" for index, _ in wanted])
        widths = rows.locator(".fill").evaluate_all("nodes => nodes.map(node => parseFloat(node.style.width))")
        assert widths == [pytest.approx(100 * score.expected, abs=0.01) for _, score in wanted]
        cost = server.post("/rerank", {"query": QUERY, "texts": DOCUMENTS}).headers
        expect(page.page.locator(".cost")).to_contain_text(f"Tokens{cost['x-compute-tokens']}")
        latency = re.search(r"Latency(\d+) ms tokenizer (\d+) \+ queue and model (\d+)", page.page.locator(".cost").inner_text().replace("\n", ""))
        assert int(latency[1]) == int(latency[2]) + int(latency[3])
        expect(page.page.get_by_role("status")).to_have_text(re.compile(rf"5 documents ranked .*Best: document {wanted[0][0]}\."))

    def test_raw_scores_and_an_instruction_are_sent(self, visit, server):
        page = visit(server)
        page.fill(QUERY, LINES, instruction="Judge the planets.")
        page.field("Raw scores log-odds instead of probabilities").check()
        page.run()
        wanted = expected(server, raw_scores=True, instruction="Judge the planets.")
        assert page.ranks() == wanted
        shown = page.page.locator(".score data").all_inner_texts()
        assert shown == [f"{score.expected:.3f}".replace("-", "−") for _, score in wanted]
        assert page.page.locator(".fill.negative").count() == sum(score.expected < 0 for _, score in wanted)

    def test_the_servers_own_instruction_is_shown(self, visit, served):
        page = visit(served("tied-bf16", "--default-instruction", "Find <b>planets</b>."))
        expect(page.field("Instruction")).to_have_attribute("placeholder", "Find <b>planets</b>.")
        expect(page.field("Instruction")).to_have_value("")

    def test_two_instructions_are_shown_side_by_side(self, visit, server):
        page = visit(server)
        page.field("Compare with a second instruction").check()
        page.fill(QUERY, LINES, instruction="Judge the planets.", second="Find the capital of a country in Asia.")
        page.run(2)
        first = expected(server, instruction="Judge the planets.")
        second = expected(server, instruction="Find the capital of a country in Asia.")
        assert (page.ranks(0), page.ranks(1)) == (first, second)
        boxes = [page.page.locator(".ranking").nth(index).bounding_box() for index in (0, 1)]
        assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"] and boxes[0]["y"] == boxes[1]["y"]
        before = {index: place for place, (index, _) in enumerate(first)}
        marks = []
        for place, (index, _) in enumerate(second):
            by = before[index] - place
            was = f", was {before[index] + 1}"
            marks.append("= same place" if by == 0 else f"↑ up {by}{was}" if by > 0 else f"↓ down {-by}{was}")
        assert len(set(marks)) > 1
        expect(page.page.locator(".ranking").nth(1).locator(".move")).to_have_text(marks)
        expect(page.page.locator(".ranking").nth(0).locator(".move")).to_have_count(0)
        moved = sum(mark[0] != "=" for mark in marks)
        expect(page.page.get_by_role("status")).to_have_text(f"Instruction B moves {moved} of 5 documents.")
        expect(page.open_prompt(0, ranking=1).locator(".piece.instruction")).to_contain_text("Find the capital")

    @pytest.mark.parametrize(
        ("text", "texts", "note"),
        [
            ("", [], "One per line"),
            ("a", ["a"], "1 document, one per line."),
            ("a\n\n b \n\t\nc\n", ["a", " b ", "c"], "3 documents, one per line, 2 blank lines left out."),
            ('["a\\nb", "", "c"]', ["a\nb", "", "c"], "3 documents, understood as a JSON list."),
            (' [{"text": "a", "id": 1}, "b"]\n', ["a", "b"], "2 documents, understood as a JSON list."),
            ('["a", {"title": "b"}]', [], "Entry 1 of this JSON list, counted from 0, is neither"),
            ("[1]", [], "Entry 0 of this JSON list, counted from 0, is neither"),
            ("[null]", [], "Entry 0 of this JSON list, counted from 0, is neither"),
            ("[1] is a footnote\nb", ["[1] is a footnote", "b"], "2 documents, one per line. It begins like a JSON list"),
            ("[]", [], "0 documents, understood as a JSON list."),
            ('{"id": 1, "text": "a"}\n\n{"text": "b\\nc"}\n"d"\n', ["a", "b\nc", "d"], "3 documents, understood as JSON Lines."),
            ('{"text": "a"}\n{"title": "b"}', [], "Line 2 of these JSON Lines is neither a text nor an object with a “text”."),
            ("{a} is a set\nb", ["{a} is a set", "b"], "2 documents, one per line. It begins like JSON Lines, but line 1 is no JSON"),
            ("a\n" * 1001, [], "1,001 documents, but this server takes at most 1,000 in one request."),
        ],
    )
    def test_documents_are_lines_or_a_list(self, visit, server, text, texts, note):
        page = visit(server)
        page.fill(QUERY, text)
        expect(page.page.locator("#documents-note")).to_contain_text(note)
        if texts:
            page.run()
            assert page.bodies[0]["texts"] == texts
        else:
            page.button("Run").click()
            problem = page.page.locator("#problem")
            expect(problem).to_contain_text("There are no documents yet." if note in ("One per line",) or note[0] == "0" else note)
            expect(page.field("Documents")).to_be_focused()
            assert page.bodies == []

    def test_an_edited_query_marks_its_ranking_as_old(self, visit, server):
        page = visit(server)
        page.fill(QUERY, LINES)
        page.run()
        old = page.page.get_by_text("this is the answer from before")
        expect(old).to_be_hidden()
        for field, text in [("Query", QUERY), ("Documents", LINES), ("Instruction", "")]:
            page.field(field).fill("another")
            expect(old).to_be_visible()
            page.field(field).fill(text)
            expect(old).to_be_hidden()
        page.field("Query").fill("another")
        page.run()
        expect(old).to_be_hidden()

    def test_its_example_runs_on_load(self, visit, server):
        page = visit(server, "/playground")
        page.page.locator(".rank").nth(4).wait_for()
        body = {"query": page.field("Query").input_value(), "texts": page.field("Documents").input_value().split("\n")}
        assert page.bodies == [{"path": "/rerank", **body}]
        assert page.page.evaluate("scrollY") == 0

    def test_a_long_ranking_is_compact(self, visit, server):
        page = visit(server)
        page.fill(QUERY, "\n".join(f"{number} {'is a number ' * 20}" for number in range(51)))
        page.run()
        heights = page.page.locator(".rank").evaluate_all("nodes => nodes.map(node => node.offsetHeight)")
        assert len(heights) == 51 and max(heights) < 60, heights
        page.open_prompt(50)

    @pytest.mark.parametrize("form", ["CSV", "JSON"])
    def test_a_ranking_can_be_saved(self, visit, server, form):
        page = visit(server)
        page.fill(QUERY, json.dumps(["=1+1", *HOSTILE]))
        page.run()
        with page.page.expect_download() as download:
            page.button(f"Save {form}").click()
        content = download.value.path().read_text("utf-8")
        rows = json.loads(content) if form == "JSON" else list(csv.DictReader(io.StringIO(content, newline="")))
        assert [(int(row["index"]), float(row["score"])) for row in rows] == page.ranks()
        start = "'" if form == "CSV" else ""
        texts = {int(row["index"]): row["text"] for row in rows}
        assert texts == {0: f"{start}=1+1", **dict(enumerate(HOSTILE, 1))}

    def test_a_reranker_with_a_classification_head_ranks(self, visit, served):
        page = visit(served("seq-cls-1"))
        page.fill(QUERY, LINES)
        page.run()
        assert page.ranks() == expected(served("seq-cls-1"))


class TestOtherModels:
    def test_an_embedding_model_shows_the_nearest_texts(self, visit, served):
        server = served("embedding-last")
        page = visit(server, "/playground")
        expect(page.page.get_by_role("status")).to_have_text(re.compile(r"6 vectors in \d+ ms\."))
        expect(page.page.locator("#query-field, #instruction-field, #raw-field")).to_have_count(3)
        for field in ("query", "instruction", "raw"):
            expect(page.page.locator(f"#{field}-field")).to_be_hidden()
        page.field("Texts").fill(LINES)
        page.run()
        assert page.bodies[-1] == {"path": "/embed", "inputs": DOCUMENTS}
        vectors = numpy.array(server.post("/embed", {"inputs": DOCUMENTS}).json())
        cosines = vectors @ vectors.T
        shown = page.page.locator(".cosines tbody tr").evaluate_all("rows => rows.map(row => [...row.cells].slice(1).map(cell => cell.textContent))")
        assert shown == [[f"{cosine:.2f}".replace("-", "−") for cosine in row] for row in cosines]
        for index in range(5):
            nearest = page.page.locator(f".rank[data-index='{index}'] .neighbour")
            order = [other for other in numpy.argsort(-cosines[index], kind="stable") if other != index][:3]
            expect(nearest.locator(".origin")).to_have_text([f"{other} " for other in order])
            values = nearest.locator("data").evaluate_all("nodes => nodes.map(node => Number(node.value))")
            assert values == pytest.approx([cosines[index][other] for other in order], abs=1e-5)
        page.field("Texts").fill("a\n" * 33)
        expect(page.page.locator("#documents-note")).to_have_text("33 texts, but this server takes at most 32 in one request.")

    def test_sparse_vectors_have_cosines_too(self, visit, served):
        server = served(MODELS.parent / "served/bert-splade-saved")
        page = visit(server)
        page.field("Texts").fill("red planet\nred planet\nbread")
        page.run()
        assert page.bodies[-1]["path"] == "/embed_sparse"
        one, _, other = ({entry["index"]: entry["value"] for entry in vector} for vector in server.post("/embed_sparse", {"inputs": ["red planet", "red planet", "bread"]}).json())
        length = lambda vector: math.hypot(*vector.values())  # noqa: E731
        cosine = sum(value * other.get(place, 0) for place, value in one.items()) / length(one) / length(other)
        row = page.page.locator(".cosines tbody tr").first.locator("td")
        expect(row).to_have_text(["1.00", "1.00", f"{cosine:.2f}"])

    def test_a_classifier_shows_a_bar_for_each_label(self, visit, served):
        server = served("seq-cls-3")
        page = visit(server, "/playground")
        expect(page.page.get_by_role("status")).to_have_text(re.compile(r"3 texts labelled in \d+ ms\."))
        page.field("Texts").fill("\n".join(HOSTILE[:2]))
        page.field("Raw scores log-odds instead of probabilities").check()
        page.run()
        body = {"inputs": [[text] for text in HOSTILE[:2]], "raw_scores": True}
        assert page.bodies[-1] == {"path": "/predict", **body}
        for index, labels in enumerate(server.post("/predict", body).json()):
            row = page.page.locator(f".rank[data-index='{index}'] .neighbour")
            expect(row.locator(".text")).to_have_text([label["label"] for label in labels])
            values = row.locator("data").evaluate_all("nodes => nodes.map(node => Number(node.value))")
            assert values == pytest.approx([label["score"] for label in labels], abs=1e-5)


class TestDecisions:
    LINES = "Which one? | Mars | 10\n\nHow red? < not < a bit < very\n a|b<c is true "
    QUESTIONS = [
        {"type": "choice", "instructions": "Which one?", "choices": [{"value": "Mars"}, {"value": "10"}]},
        {"type": "score", "instructions": "How red?", "levels": [{"label": "not"}, {"label": "a bit"}, {"label": "very"}]},
        {"type": "predicate", "instructions": "a|b<c is true"},
    ]

    def test_each_answer_has_a_bar_with_its_probability(self, visit, served):
        server = served(*DECIDER)
        page = visit(server, "/playground")
        expect(page.page.get_by_role("status")).to_have_text(re.compile(r"3 questions answered in \d+ ms\."))
        expect(page.page.locator("#task-field, #raw-field, #instruction-field, #judged")).to_have_count(4)
        for field in ("task-field", "raw-field", "instruction-field", "judged"):
            expect(page.page.locator(f"#{field}")).to_be_hidden()
        page.ask(DOCUMENTS[1], self.LINES)
        expect(page.page.locator("#documents-note")).to_have_text("3 questions, one per line: 1 choice, 1 scale, 1 yes or no.")
        page.run()
        body = {"input": DOCUMENTS[1], "questions": self.QUESTIONS}
        assert page.bodies[-1] == {"path": "/v1/decisions", **body}
        choice, score, noul = server.post("/v1/decisions", body).json()["answers"]
        options = lambda answer, name: [(item[name], item["probability"]) for item in answer["probabilities"]]
        wanted = [
            sorted(options(choice, "value"), key=lambda option: -option[1]),
            options(score, "label"),
            [("yes", noul["probability"]), ("no", 1 - noul["probability"])],
        ]
        for index, answers in enumerate(wanted):
            bars = page.page.locator(f".rank[data-index='{index}'] .neighbour")
            expect(bars.locator(".text")).to_have_text([name for name, _ in answers])
            values = bars.locator("data").evaluate_all("nodes => nodes.map(node => Number(node.value))")
            assert values == pytest.approx([value for _, value in answers], abs=1e-6)
            widths = bars.locator(".fill").evaluate_all("nodes => nodes.map(node => parseFloat(node.style.width))")
            assert widths == pytest.approx([100 * value for _, value in answers], abs=0.01)
        expect(page.page.locator(".about")).to_have_text([
            f"confidence {choice['confidence']:.2f}",
            f"expected level {score['score']:.2f} of 0 to 2, confidence {score['confidence']:.2f}",
        ])

    @pytest.mark.parametrize(
        ("questions", "problem"),
        [
            ("", "There are no questions yet."),
            ('["a"', "This begins like a JSON list of questions, but is none"),
            ("x\n" * 401, "401 questions, but this server takes at most 400 in one request."),
            ('[{"type": "score", "instructions": "x", "levels": []}]', "The server refused this: invalid request: `questions[0].levels`: there are 0 levels: give at least 2."),
            ("[3]", "The server refused this: invalid request"),
        ],
    )
    def test_questions_that_cannot_be_asked(self, visit, served, questions, problem):
        page = visit(served(*DECIDER), statuses=[422])
        page.ask("", questions)
        page.button("Run").click()
        expect(page.page.locator("#problem")).to_have_text("Write a state first.")
        page.ask("s", questions)
        page.button("Run").click()
        expect(page.page.locator("#problem")).to_contain_text(problem)

    def test_a_json_list_is_sent_as_it_is_and_its_code_runs(self, visit, served, tmp_path):
        many = {"type": "choice", "instructions": [{"type": "input_text", "text": "Which?"}], "name": HOSTILE[0], "choices": [{"value": f"option {index}"} for index in range(30)]}
        flags = {"type": "choice", "instructions": HOSTILE[7], "choices": [{"value": True, "description": None}, {"value": HOSTILE[2]}]}
        page = visit(served(*DECIDER))
        page.ask(HOSTILE[1], json.dumps([many, flags]))
        page.run()
        assert page.bodies[-1]["questions"] == [many, flags]
        rows = page.page.locator(".rank")
        expect(rows.first.locator(".neighbour")).to_have_count(10)
        expect(rows.first.locator(".hint")).to_have_text("and 20 other options")
        texts = rows.locator("> .text").evaluate_all("nodes => nodes.map(node => node.textContent)")
        assert texts == [f'{HOSTILE[0]}: [{{"type":"input_text","text":"Which?"}}]', HOSTILE[7]]
        assert page.page.locator("#columns :is(script, style, iframe, img, svg, a)").count() == 0
        page.page.get_by_text("This request as code").click()
        code = page.page.locator("pre[data-language=python]").text_content()
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=variables(), cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        answers = ast.literal_eval(ended.stdout)["answers"]
        sent = served(*DECIDER).post("/v1/decisions", {"input": HOSTILE[1], "questions": [many, flags]}).json()
        assert answers == sent["answers"]
        with page.page.expect_download() as download:
            page.button("Save CSV").click()
        saved = list(csv.DictReader(io.StringIO(download.value.path().read_text("utf-8"), newline="")))
        assert [row["answer"] for row in saved[30:]] == ["true", HOSTILE[2]] and len(saved) == 32

    def test_a_reranker_answers_questions_too(self, visit, server, served):
        page = visit(server, permissions=["clipboard-read", "clipboard-write"])
        page.page.get_by_label("Ask about a text").check()
        page.ask(DOCUMENTS[1], self.LINES)
        page.run()
        body = {"input": DOCUMENTS[1], "questions": self.QUESTIONS}
        assert page.bodies[-1] == {"path": "/v1/decisions", **body}
        expect(page.page.locator(".rank")).to_have_count(3)
        page.button("Copy link").click()
        expect(page.page.get_by_role("status")).to_contain_text("The link is copied.")
        address = urlsplit(page.page.evaluate("navigator.clipboard.readText()"))
        other = visit(server, f"{address.path}#{address.fragment}")
        expect(other.field("Questions")).to_have_value(self.LINES)
        other.run()
        assert other.bodies == [{"path": "/v1/decisions", **body}]
        for model in ("seq-cls-1", "seq-cls-3"):
            expect(visit(served(model)).page.locator("#model code")).to_be_visible()
            assert served(model).get("/info").json()["max_questions"] is None


class TestPrompt:
    def test_it_is_shown_piece_by_piece(self, visit, server):
        page = visit(server)
        page.fill(QUERY, LINES, instruction="Judge the planets.")
        page.run()
        shown = page.open_prompt(1)
        answer = server.post("/playground/prompt", page.bodies[-1]).json()
        assert page.bodies[-1]["text"] == DOCUMENTS[1]
        pieces = answer["pieces"]
        assert [piece["text"] for piece in pieces if piece["kind"] != "template"] == ["Judge the planets.", QUERY, DOCUMENTS[1]]
        # `.tag` elements with the counts are inside the elements of the pieces.
        kinds = [f"{piece['kind']} {piece['tokens']}" for piece in pieces if piece["kind"] != "template"]
        expect(shown.locator(".tag")).to_have_text(kinds)
        texts = shown.locator(".piece").evaluate_all("nodes => nodes.map(node => node.lastChild.data)")
        assert texts == [piece["text"] for piece in pieces]
        expect(shown.locator(".total")).to_have_text(f"{answer['tokens']} tokens of at most 8,192.")
        document = pieces[5]["tokens"]
        suffix = pieces[6]["tokens"]
        assert answer["shared_tokens"] == answer["tokens"] - document - suffix
        titles = shown.locator(".part-title").all_inner_texts()
        assert [title.split(" tokens")[0] for title in titles] == [
            f"Shared prefix {answer['shared_tokens']}",
            f"Document {document}",
            f"Suffix {suffix}",
        ]
        expect(shown.locator(".mark")).to_have_count(0)
        row = page.page.locator(".rank[data-index='1']")
        row.get_by_role("button", name="Prompt").click()
        expect(row.locator(".prompt")).to_be_hidden()

    def test_an_empty_document_has_its_place(self, visit, server):
        page = visit(server)
        page.fill(QUERY, '["", "no"]')
        page.run()
        shown = page.open_prompt(0)
        expect(shown.locator(".tag").last).to_have_text("document 0")
        expect(shown.locator(".part-title")).to_contain_text(["Shared prefix", "Document 0 tokens", "Suffix 9 tokens"])

    def test_the_part_that_was_cut_is_marked(self, visit, short):
        page = visit(short)
        long = "the planet is in it. " * 60
        page.fill(QUERY, f"yes\n{long}\nno")
        page.run()
        expect(page.page.locator(".cost")).to_contain_text("Cut1 document: 1")
        expect(page.page.locator(".rank[data-index='1'] .about .mark")).to_have_text(re.compile(r"✂ \d+ tokens cut"))
        expect(page.page.locator(".about .mark")).to_have_count(1)
        shown = page.open_prompt(1)
        answer = short.post("/playground/prompt", {"query": QUERY, "text": long}).json()
        kept, cut = [piece for piece in answer["pieces"] if piece["kind"] == "document"]
        assert not kept["cut"] and cut["cut"] and kept["text"] + cut["text"] == long and answer["tokens"] == 128
        expect(shown.locator(".mark")).to_have_text(f"✂ cut from here on: {cut['tokens']} tokens not read")
        order = shown.locator(".pieces").nth(1).evaluate("node => [...node.children].map(child => child.className)")
        assert order == ["piece document", "mark", "piece document cut"]
        gone = shown.locator("del")
        assert gone.evaluate("node => node.textContent") == cut["text"]
        assert "line-through" in gone.evaluate("node => getComputedStyle(node).textDecorationLine")
        expect(shown.locator(".total")).to_have_text(f"128 tokens of at most 128. {cut['tokens']} tokens too many were cut.")


class TestKey:
    def test_it_is_asked_for_and_kept_in_the_tab_only(self, visit, served):
        server = served("tied-bf16", "--api-key", KEY)
        page = visit(server, statuses=[401])
        field = page.field("API key")
        expect(field).to_be_focused()
        expect(page.page.locator("#model")).to_have_text("A server with a key.")
        for wrong, problem in [("wrong", "The server does not accept this key."), ("ключ", "A key has no spaces")]:
            field.fill(wrong)
            page.page.keyboard.press("Enter")
            expect(page.page.locator("#key-problem")).to_contain_text(problem)
        field.fill(KEY)
        page.button("Use this key").click()
        expect(field).to_be_hidden()
        expect(page.page.locator("#model code")).to_contain_text("tied-bf16")
        page.fill(QUERY, LINES)
        page.run()
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = requests.post(f"{server.url}/rerank", json={"query": QUERY, "texts": DOCUMENTS}, headers=headers, timeout=60)
        assert [index for index, _ in page.ranks()] == [rank["index"] for rank in answer.json()]
        page.open_prompt(0)
        page.button("Copy link").click()
        page.page.wait_for_url("**/playground#*")
        for place in (page.page.url, unquote(page.page.url), page.page.content(), server.log()):
            assert KEY not in place
        assert page.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.page.reload()
        expect(page.page.locator("#model code")).to_contain_text("tied-bf16")
        page.button("Forget the key").click()
        expect(page.field("API key")).to_be_visible()
        page.button("Run").click()
        expect(page.page.locator("#problem")).to_have_text("This server wants its key.")
        assert page.page.evaluate("sessionStorage.length") == 0


class TestCode:
    @pytest.mark.parametrize("key", [None, KEY])
    @pytest.mark.parametrize("language", ["curl", "python"])
    def test_pasted_it_gives_the_same_answer(self, visit, served, key, language, tmp_path):
        if language == "curl":
            programs.require("curl")
        server = served("tied-bf16", *(("--api-key", key) if key else ()))
        page = visit(server, statuses=[401])
        if key:
            page.field("API key").fill(key)
            page.page.keyboard.press("Enter")
            expect(page.field("API key")).to_be_hidden()
        page.fill("It's \"the\" $HOME?", json.dumps(HOSTILE), instruction="Don't\nbreak `out`; \\'")
        page.run()
        page.page.get_by_text("This request as code").click()
        code = page.page.locator(f"pre[data-language={language}]").text_content()
        assert KEY not in code and not re.search("[\u202e\u2066\ufeff\x7f\x1b]", code)
        command = ["sh", "-c", code] if language == "curl" else [sys.executable, "-c", code]
        environment = variables({"API_KEY": key} if key else None)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert not (tmp_path / "never").exists()
        if language == "curl":
            ranks = [(rank["index"], rank["score"]) for rank in json.loads(ended.stdout)]
        else:
            ranks = [(int(index), float(score)) for index, score in map(str.split, ended.stdout.splitlines())]
        assert ranks == [(index, pytest.approx(score, abs=2e-5)) for index, score in page.ranks()]

    def test_the_button_copies_it(self, visit, server):
        page = visit(server, permissions=["clipboard-read", "clipboard-write"])
        page.fill(QUERY, LINES)
        page.run()
        page.page.get_by_text("This request as code").click()
        for name in ("curl", "Python"):
            page.button(f"Copy as {name}").click()
            expect(page.page.get_by_role("status")).to_have_text(f"Copied as {name}.")
            code = page.page.locator(f"pre[data-language={name.lower()}]").text_content()
            assert page.page.evaluate("navigator.clipboard.readText()") == code

    def test_a_link_fills_the_fields_and_runs_nothing(self, visit, server):
        page = visit(server, permissions=["clipboard-read", "clipboard-write"])
        page.field("Compare with a second instruction").check()
        page.fill(HOSTILE[0], LINES, instruction="A & B #1 %20", second=HOSTILE[4])
        page.button("Copy link").click()
        expect(page.page.get_by_role("status")).to_contain_text("The link is copied.")
        address = urlsplit(page.page.evaluate("navigator.clipboard.readText()"))
        other = visit(server, f"{address.path}#{address.fragment}")
        expect(other.field("Query")).to_have_value(HOSTILE[0])
        expect(other.field("Documents")).to_have_value(LINES)
        expect(other.field("Instruction A")).to_have_value("A & B #1 %20")
        expect(other.field("Instruction B")).to_have_value(HOSTILE[4])
        expect(other.page.locator("#model code")).to_be_visible()
        assert other.bodies == []
        for fragment in ("null", "3", "[]", "%", "results", '{"query":{},"documents":7,"second":null}'):
            expect(visit(server, f"/playground#{fragment}").page.locator("#model code")).to_be_visible()
