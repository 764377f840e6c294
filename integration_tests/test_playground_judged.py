"""Judged documents at `/playground`: marks, files with queries, nDCG and MRR, ties, and saved files."""

import itertools
import json
import math
import random
from statistics import mean

import pytest
from browser import DOCUMENTS, HOSTILE, LINES, QUERY, WITH_CHROMIUM
from playwright.sync_api import expect

pytestmark = WITH_CHROMIUM

QUERIES = [
    {"query": QUERY, "documents": [{"text": text, "relevance": grade} for text, grade in zip(DOCUMENTS, [0, 2, 0, 0, 1], strict=True)]},
    {"query": "Which city is a capital?", "positive": [DOCUMENTS[0], DOCUMENTS[2]], "negative": [DOCUMENTS[1], DOCUMENTS[3]]},
    {"query": "no judgement", "documents": DOCUMENTS},
]
FILE = "\n".join(json.dumps(query) for query in QUERIES)
INSTRUCTION = "Find the capital of a country in Asia."


def measures(ranked: list[tuple[float, float]], grades: list[float]) -> tuple[float, float]:
    """nDCG@10 and reciprocal rank by their definitions, each as the mean over all orders of equal scores.
    `ranked` has the grade and the score of each place."""

    def gain(order):
        return sum(grade / math.log2(place + 2) for place, grade in enumerate(order[:10]))

    def ndcg(order):
        return gain(order) / gain(sorted(grades, reverse=True))

    def reciprocal(order):
        return next((1 / place for place, grade in enumerate(order, 1) if grade > 0), 0)

    groups = [[grade for grade, _ in group] for _, group in itertools.groupby(ranked, key=lambda entry: entry[1])]
    orders = [list(itertools.chain(*parts)) for parts in itertools.product(*map(itertools.permutations, groups))]
    return mean(map(ndcg, orders)), mean(map(reciprocal, orders))


def served_measures(server, query: str, grades: dict[str, float], **fields: object) -> tuple[float, float]:
    texts = list(grades)
    ranks = server.rerank(query, texts, raw_scores=True, **fields)
    return measures([(grades[texts[rank["index"]]], rank["score"]) for rank in ranks], list(grades.values()))


MEASURE = "({ measure }, [ranked, grades]) => measure(ranked, grades) ?? null"


class TestMeasures:
    # Each grade with its score, best first; then nDCG@10 and reciprocal rank, computed by hand.
    TABLE = [
        ([(1, 3), (0, 2)], 1, 1),
        ([(0, 3), (1, 2)], 1 / math.log2(3), 1 / 2),
        ([(0, 3), (1, 2), (0, 1), (1, 0)], (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3)), 1 / 2),
        ([(1, 3), (3, 2)], (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)), 1),
        # One relevant text among four equal ones is at each place equally often.
        ([(1, 1), (0, 1), (0, 1), (0, 1)], (1 + 1 / math.log2(3) + 1 / 2 + 1 / math.log2(5)) / 4, (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4),
        ([(0, 9), (1, 5), (0, 5)], (1 / math.log2(3) + 1 / 2) / 2, (1 / 2 + 1 / 3) / 2),
        # Place 11 counts for the reciprocal rank only.
        ([(0, 20 - place) for place in range(10)] + [(1, 0)], 0, 1 / 11),
    ]

    def test_they_are_those_of_the_definitions(self, visit, server):
        page = visit(server)
        for ranked, ndcg, rr in self.TABLE:
            entries = [{"grade": grade, "score": score} for grade, score in ranked]
            got = page.module("metrics", MEASURE, [entries, [grade for grade, _ in ranked]])
            assert (got["ndcg"], got["rr"]) == pytest.approx((ndcg, rr), abs=1e-12), ranked
        assert page.module("metrics", MEASURE, [[{"grade": 0, "score": 1}], [0]]) is None
        # A relevant text that the server left out counts in the ideal order only.
        got = page.module("metrics", MEASURE, [[{"grade": 0, "score": 1}], [0, 1]])
        assert (got["ndcg"], got["rr"], got["relevant"]) == (0, 0, 1)

    def test_they_are_the_means_over_all_orders_of_equal_scores(self, visit, server):
        page = visit(server)
        rng = random.Random(5)
        for _ in range(60):
            ranked = sorted(((rng.choice([0, 0, 1, 3]), rng.choice([0.5, 1.0, 1.5, 2.0])) for _ in range(rng.randint(1, 7))), key=lambda entry: -entry[1])
            ranked += [(rng.choice([0, 1]), -place) for place in range(rng.randint(0, 8))]
            grades = [grade for grade, _ in ranked] + [rng.choice([0, 1])]
            got = page.module("metrics", MEASURE, [[{"grade": grade, "score": score} for grade, score in ranked], grades])
            if not any(grades):
                assert got is None
                continue
            assert (got["ndcg"], got["rr"]) == pytest.approx(measures(ranked, grades), abs=1e-12), ranked


class TestMarks:
    def test_they_give_measures_without_another_request(self, visit, server):
        page = visit(server)
        page.field("Compare with a second instruction").check()
        page.fill(QUERY, LINES, second=INSTRUCTION)
        page.run(2)
        lines = page.page.locator(".measures")
        expect(lines).to_have_text(["Mark relevant documents to see nDCG and MRR."] * 2)
        sent = len(page.bodies)
        relevant = {text: int(index in (1, 3)) for index, text in enumerate(DOCUMENTS)}
        page.button("Document 1 is relevant").first.click()
        page.button("Document 3 is relevant").last.click()
        expect(page.page.locator("[aria-pressed=true]")).to_have_count(4)
        before, after = served_measures(server, QUERY, relevant), served_measures(server, QUERY, relevant, instruction=INSTRUCTION)
        expect(lines.first).to_have_text(f"nDCG@10 {before[0]:.3f}MRR {before[1]:.3f}2 relevant")
        changes = [f"{change:+.3f}".replace("-", "−") if abs(change) >= 0.0005 else "±0" for change in (after[0] - before[0], after[1] - before[1])]
        expect(lines.last).to_have_text(f"nDCG@10 {after[0]:.3f} {changes[0]}MRR {after[1]:.3f} {changes[1]}2 relevant")
        page.button("Document 3 is relevant").first.click()
        expect(page.page.locator("[aria-pressed=true]")).to_have_count(2)
        assert len(page.bodies) == sent
        # They belong to the texts, also when the query is worded anew and the order of the texts is another.
        page.fill("planet?", "\n".join(reversed(DOCUMENTS)))
        page.run(2)
        assert page.page.locator("[aria-pressed=true]").first.get_attribute("aria-label") == "Document 3 is relevant"

    def test_they_are_part_of_a_link_and_of_saved_files(self, visit, server):
        page = visit(server, permissions=["clipboard-read", "clipboard-write"])
        page.fill(QUERY, LINES)
        page.run()
        page.button("Document 4 is relevant").click()
        with page.page.expect_download() as download:
            page.button("Save judgements").click()
        saved = download.value.path().read_text("utf-8")
        assert json.loads(saved) == {"query": QUERY, "documents": [{"text": text, "relevance": int(index == 4)} for index, text in enumerate(DOCUMENTS)]}
        with page.page.expect_download() as download:
            page.button("Save JSON").click()
        assert [row["relevance"] for row in json.loads(download.value.path().read_text("utf-8"))] == [int(index == 4) for index, _ in page.ranks()]
        page.button("Copy link").click()
        expect(page.page.get_by_role("status")).to_contain_text("The link is copied.")
        other = visit(server, page.page.evaluate("navigator.clipboard.readText()").removeprefix(server.url))
        other.run()
        expect(other.button("Document 4 is relevant")).to_have_attribute("aria-pressed", "true")
        expect(other.page.locator("[aria-pressed=true]")).to_have_count(1)

    def test_scores_that_look_alike_show_their_raw_scores(self, visit, server):
        page = visit(server)
        scores = {False: [0.99999994, 1.0, 1.0, 0.25], True: [16.5, 17.25, 17.25, -1.0986]}

        def answer(route) -> None:
            ranks = [{"index": index, "score": score} for index, score in enumerate(scores[route.request.post_data_json.get("raw_scores", False)])]
            route.fulfill(json=sorted(ranks, key=lambda rank: -rank["score"]))

        page.page.route("**/rerank", answer)
        page.fill(QUERY, "a\nb\nc\nd")
        page.run()
        rows = page.page.locator(".rank")
        expect(rows.locator("data")).to_have_text(["1.0000", "1.0000", "1.0000", "0.2500"])
        tied = "raw 17.250, same score as its neighbour"
        expect(rows.locator(".raw-score")).to_have_text([tied, tied, "raw 16.500", "raw −1.099"])
        assert [body.get("raw_scores", False) for body in page.bodies] == [False, True]
        # The raw scores decide which texts have no order of their own: here `b` and `c`.
        page.button("Document 1 is relevant").click()
        expect(page.page.locator(".measures")).to_have_text(f"nDCG@10 {(1 + 1 / math.log2(3)) / 2:.3f}MRR 0.7501 relevant")


class TestSentences:
    def test_each_has_its_own_score(self, visit, server):
        page = visit(server)
        texts = ["Mars is red 😀. Venus isn't!\nBread?", *HOSTILE[:2]]
        page.fill(QUERY, json.dumps(texts))
        page.run()
        for index, text in enumerate(texts):
            row = page.page.locator(f".rank[data-index='{index}']")
            row.get_by_role("button", name="Sentences").click()
            (answer,) = server.post("/rerank", {"query": QUERY, "texts": [text], "highlight": True}).json()
            sentences = [text[part["start"] : part["end"]] for part in answer["highlights"]]
            shown = row.locator(".sentences .neighbour")
            expect(shown).to_have_count(len(sentences))
            assert shown.locator(".text").evaluate_all("nodes => nodes.map(node => node.textContent)") == sentences
            values = shown.locator("data").evaluate_all("nodes => nodes.map(node => Number(node.value))")
            assert values == pytest.approx([part["score"] for part in answer["highlights"]], abs=2e-5)
        assert page.page.locator(".sentences .neighbour").count() > 3
        row.get_by_role("button", name="Sentences").click()
        expect(row.locator(".sentences")).to_be_hidden()


READ = "({ readDocuments }, field) => { const read = readDocuments(field, { noun: 'document', limit: 5 }); return { ...read, grades: [...(read.grades ?? [])], queries: read.queries?.map((query) => ({ ...query, grades: [...query.grades] })) }; }"


class TestFiles:
    # A file's content; its queries with texts and grades, or its problem.
    TABLE = [
        ('{"query": "q", "documents": ["a", {"text": "b", "relevance": 2}]}', [("q", ["a", "b"], [["b", 2]])]),
        ('{"query": "q", "positive": ["a"], "negative": ["b", "c"]}\n\n', [("q", ["a", "b", "c"], [["a", 1], ["b", 0], ["c", 0]])]),
        ('{"query": "q", "pos": "a", "neg": []}', [("q", ["a"], [["a", 1]])]),
        (
            '{"query": "q", "text": "a", "label": true}\n{"query": "r", "document": "c"}\n{"query": "q", "text": "b", "relevant": false}',
            [("q", ["a", "b"], [["a", 1], ["b", 0]]), ("r", ["c"], [])],
        ),
        ('[{"query": "q", "documents": ["a"]}]', [("q", ["a"], [])]),
        ('{"query": "q", "documents": ["a"]}\n{"documents": ["b"]}', "Line 2 of these JSON Lines has no “query”, but others have one."),
        ('{"query": "q"}', "Line 1 of these JSON Lines has a “query” but no “documents”, “positive” or “text”."),
        ('{"query": "q", "documents": [1]}', "Line 1 of these JSON Lines is neither a text nor an object with a “text”."),
        ('\n{"query": "q", "text": "a", "relevance": -1}', "Line 2 of these JSON Lines has a “relevance” that is neither true or false nor a number from 0 up."),
        ('{"query": "q", "documents": []}', "The query “q” has no documents."),
        ('{"query": "q", "documents": ["a", "b", "c", "d", "e", "f"]}', "6 documents for a query, but this server takes at most 5 in one request."),
    ]

    def test_queries_are_read_from_json(self, visit, server):
        page = visit(server)
        for field, expected in self.TABLE:
            read = page.module("documents", READ, field)
            if isinstance(expected, str):
                assert (read["problem"], read["note"]) == (True, expected), field
            else:
                assert [(query["query"], query["texts"], query["grades"]) for query in read["queries"]] == expected, field
                assert not read.get("problem"), field
        many = "\n".join(json.dumps({"query": str(number), "text": "a"}) for number in range(1001))
        assert page.module("documents", READ, many)["note"].startswith("1,001 queries, but this page asks at most 1,000")
        graded = page.module("documents", READ, '{"text": "a", "relevance": 1}\n{"text": "b"}')
        assert (graded["texts"], graded["grades"]) == (["a", "b"], [["a", 1]])
        assert graded["note"] == "2 documents, 1 of them relevant, understood as JSON Lines."

    def test_a_file_can_be_dropped_or_chosen(self, visit, server, tmp_path):
        page = visit(server)
        path = tmp_path / "judged.jsonl"
        path.write_text(FILE, "utf-8")
        drop = """([name, bytes]) => {
          const data = new DataTransfer();
          data.items.add(new File([Uint8Array.from(bytes)], name));
          for (const kind of ["dragover", "drop"]) document.querySelector("h1").dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
        page.page.evaluate(drop, ["judged.jsonl", list(FILE.encode())])
        expect(page.field("Documents")).to_have_value(FILE)
        note = "3 queries with 14 documents, understood as JSON Lines."
        expect(page.page.get_by_role("status")).to_have_text(f"judged.jsonl is in the field: {note}")
        expect(page.page.locator("#query-field")).to_be_hidden()
        expect(page.page.locator(".dropping")).to_have_count(0)
        page.button("Clear").click()
        expect(page.page.locator("#query-field")).to_be_visible()
        with page.page.expect_file_chooser() as chooser:
            page.button("Open a file").click()
        chooser.value.set_files(path)
        expect(page.page.locator("#documents-note")).to_have_text(note)
        page.page.evaluate(drop, ["x.bin", [255, 254, 0]])
        expect(page.page.locator("#problem")).to_have_text("x.bin is not a text in UTF-8.")
        page.page.evaluate("name => { const data = new DataTransfer(); data.items.add(new File([new Uint8Array(4194305)], name)); document.dispatchEvent(new DragEvent('drop', { dataTransfer: data })); }", "big.txt")
        expect(page.page.locator("#problem")).to_contain_text("big.txt has more than 4 MB")
        expect(page.field("Documents")).to_have_value(FILE)
        assert page.bodies == []


class TestEvaluation:
    def grades(self) -> list[dict[str, float]]:
        one = {entry["text"]: entry["relevance"] for entry in QUERIES[0]["documents"]}
        two = {text: 1 - side for side, name in enumerate(("positive", "negative")) for text in QUERIES[1][name]}
        return [one, two]

    def cells(self, page) -> list[list[str]]:
        return page.page.locator(".scores tbody tr").evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.textContent))")

    def test_one_instruction_is_measured(self, visit, server):
        page = visit(server)
        page.field("Documents").fill(FILE)
        page.run(2)
        expected = [served_measures(server, query["query"], grades) for query, grades in zip(QUERIES, self.grades(), strict=False)]
        rows = [[query["query"], "2", *(f"{value:.3f}" for value in values)] for query, values in zip(QUERIES, expected, strict=False)]
        assert self.cells(page) == [*rows, ["no judgement", "0", "–", "–"]]
        ndcg, rr = (mean(values) for values in zip(*expected, strict=True))
        expect(page.page.locator(".means")).to_have_text(f"Mean nDCG@10{ndcg:.3f}Mean MRR{rr:.3f}Queries2 of 3: the others have no relevant document")
        expect(page.page.get_by_role("status")).to_have_text(f"3 queries ranked. nDCG@10 is {ndcg:.3f}.")
        # A query's ranking is shown on request; a mark in it changes the table at once.
        page.button("no judgement").press("Enter")
        expect(page.button("no judgement")).to_be_focused()
        expect(page.page.locator("[aria-current=true]")).to_have_text("no judgement0––")
        ranking = page.page.locator(".ranking").nth(1)
        best = ranking.locator(".rank").first
        best.get_by_role("button", name="is relevant").click()
        expect(page.page.locator(".scores tbody tr").nth(2)).to_have_text("no judgement11.0001.000")
        expect(page.page.locator(".means")).to_contain_text("Queries3")
        with page.page.expect_download() as download:
            page.button("Save judgements").first.click()
        saved = [json.loads(line) for line in download.value.path().read_text("utf-8").splitlines()]
        assert saved[0] == QUERIES[0]
        assert [sum(entry["relevance"] for entry in query["documents"]) for query in saved] == [3, 2, 1]
        # The page reads the saved file again.
        page.field("Documents").fill("\n".join(map(json.dumps, saved)))
        page.run(2)
        assert self.cells(page)[2] == ["no judgement", "1", "1.000", "1.000"]

    def test_two_instructions_are_compared(self, visit, server):
        page = visit(server)
        page.field("Documents").fill(FILE)
        page.field("Compare with a second instruction").check()
        page.field("Instruction B").fill(INSTRUCTION)
        page.run(3)
        pairs = []
        for query, grades in zip(QUERIES, self.grades(), strict=False):
            pairs.append((served_measures(server, query["query"], grades), served_measures(server, query["query"], grades, instruction=INSTRUCTION)))
        for cells, (before, after) in zip(self.cells(page), pairs, strict=False):
            assert (cells[2:4], cells[5:7]) == tuple([f"{one:.3f}", f"{other:.3f}"] for one, other in zip(before, after, strict=True))
            change = after[0] - before[0]
            assert cells[4] == ("±0" if abs(change) < 0.0005 else f"{change:+.3f}".replace("-", "−"))
        order = [query["query"] for query in QUERIES]
        page.field("Order of the queries").select_option("Worst first")
        losses = [pairs[0][0][0] - pairs[0][1][0], pairs[1][0][0] - pairs[1][1][0]]
        sorted_queries = [*sorted(order[:2], key=lambda query: -losses[order.index(query)]), order[2]]
        assert [cells[0] for cells in self.cells(page)] == sorted_queries
        with page.page.expect_download() as download:
            page.button("Save JSON").first.click()
        rows = json.loads(download.value.path().read_text("utf-8"))
        assert [row["query"] for row in rows] == order
        for row, (before, after) in zip(rows, pairs, strict=False):
            assert [row[name] for name in ("ndcg_a", "ndcg_b", "rr_a", "rr_b")] == pytest.approx([before[0], after[0], before[1], after[1]], abs=1e-9)
        assert rows[2] == {"query": "no judgement", "relevant": 0, "ndcg_a": None, "rr_a": None, "ndcg_b": None, "rr_b": None}

    def test_hostile_queries_are_shown_as_text(self, visit, server):
        phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
        page = visit(server, **phone)
        page.field("Documents").fill("\n".join(json.dumps({"query": query, "positive": HOSTILE[:1], "negative": HOSTILE[1:]}) for query in HOSTILE))
        page.run(2)
        assert [cells[0] for cells in self.cells(page)] == HOSTILE
        assert page.page.locator("#columns :is(script, style, iframe, img, svg, a)").count() == 0
        assert page.width() == 360


class TestOtherModels:
    def test_an_embedding_model_ranks_by_cosines(self, visit, served):
        server = served("embedding-last")
        page = visit(server)
        page.field("Rank for a query").check()
        page.fill(QUERY, LINES)
        expect(page.page.locator("#raw-note")).to_have_text("cosines instead of (x+1)/2")
        page.run()
        expected = server.rerank(QUERY, DOCUMENTS)
        assert page.ranks() == [(rank["index"], pytest.approx(rank["score"], abs=2e-5)) for rank in expected]
        # It reads no prompt of query and document.
        expect(page.button("Prompt")).to_have_count(0)
        page.field("Compare texts").check()
        page.run()
        assert page.bodies[-1] == {"path": "/embed", "inputs": DOCUMENTS}

    def test_alike_texts_are_put_next_to_each_other(self, visit, served):
        page = visit(served("embedding-last"))
        page.field("Texts").fill("red\nbread and water\nred\nbread and water\nno")
        page.run()
        rows = page.page.locator(".cosines tbody th .origin")
        expect(rows).to_have_text([f"{index} " for index in range(5)])
        page.field("Put alike texts next to each other").check()
        order = [int(text) for text in rows.all_inner_texts()]
        assert sorted(order) == list(range(5))
        assert abs(order.index(0) - order.index(2)) == 1 and abs(order.index(1) - order.index(3)) == 1
        expect(page.page.locator(".cost")).to_contain_text("1.000")
        with page.page.expect_download() as download:
            page.button("Save pairs").click()
        pairs = [json.loads(line) for line in download.value.path().read_text("utf-8").splitlines()]
        assert len(pairs) == 10 and max(pair["cosine"] for pair in pairs) == pytest.approx(1, abs=1e-6)

    def test_a_classifiers_labels_are_compared_with_a_file(self, visit, served):
        server = served("seq-cls-3")
        page = visit(server)
        answer = server.post("/predict", {"inputs": [[text] for text in DOCUMENTS]}).json()
        best = [max(labels, key=lambda label: label["score"])["label"] for labels in answer]
        other = next(label["label"] for label in answer[0] if label["label"] != best[0])
        lines = [{"text": text, "label": label} for text, label in zip(DOCUMENTS, [other, *best[1:]], strict=True)]
        page.field("Texts").fill("\n".join(map(json.dumps, lines)))
        page.run()
        expect(page.page.locator(".cost")).to_contain_text("Accuracy0.800 (4 of 5)")
        expect(page.page.locator(".move")).to_have_text(f"should be {other}")
        page.field("Least certain first").check()
        scores = [sorted((label["score"] for label in labels), reverse=True) for labels in answer]
        order = sorted(range(5), key=lambda index: scores[index][0] - scores[index][1])
        shown = page.page.locator(".rank").evaluate_all("rows => rows.map(row => Number(row.dataset.index))")
        assert shown == order
        page.field("Best label").select_option(best[1])
        expect(page.page.locator(".rank")).to_have_count(best.count(best[1]))
