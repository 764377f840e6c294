"""`embed` and `rerank --queries`: compared with the running server, continued after kills, and bad input."""

import csv
import gzip
import json
import math
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ir_measures
import numpy
import pytest
from command_line import peak_memory, rerank, run
from server import BINARY, MODELS, variables

EMBEDDER = "embedding-last"
RERANKER = "tied-bf16"
WORDS = "mars venus 행성 red planet bread 火星 known for its colour".split()
ONE_THREAD = ("--threads", "1")


def texts(count: int, seed: int, words: int = 12) -> list[str]:
    """Different random texts."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, words)) + [str(number)]) for number in range(count)]


def embed(*arguments: object, model: str = EMBEDDER, **options: object):
    return run("embed", "--model-id", MODELS / model, *arguments, **options)


def served_vectors(server, inputs: list[str], **fields: object) -> numpy.ndarray:
    """The vectors of the server's `/embed`."""
    answers = [server.post("/embed", {"inputs": inputs[start : start + 32], **fields}).json() for start in range(0, len(inputs), 32)]
    return numpy.array([vector for answer in answers for vector in answer], dtype=numpy.float32)


def vectors_of(ended) -> numpy.ndarray:
    return numpy.array([row["embedding"] for row in ended.lines()], dtype=numpy.float32)


def killed(out: Path, arguments: list[object], at_bytes: int) -> bool:
    """Starts a command and kills it once its partial file has `at_bytes`. Whether it was killed in time."""
    partial = Path(f"{out}.partial")
    process = subprocess.Popen([str(BINARY), *map(str, arguments)], stderr=subprocess.PIPE, env=variables())
    while process.poll() is None and not (partial.exists() and partial.stat().st_size >= at_bytes):
        time.sleep(0.002)
    process.kill()
    error = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) in (0, -9), error
    return not out.exists()


@contextmanager
def paused(out: Path, lines: bytes) -> Iterator[None]:
    """A run that waits for more input after it has written the vectors of `lines`, and is then killed."""
    command = [str(BINARY), "embed", "--model-id", str(MODELS / EMBEDDER), "--input", "-", "--output-file", str(out)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables())
    process.stdin.write(lines)
    process.stdin.flush()
    partial = Path(f"{out}.partial")
    limit = time.monotonic() + 60
    while not partial.exists() or partial.read_bytes().count(b"\n") < lines.count(b"\n"):
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.01)
    yield
    process.kill()
    process.wait(60)
    process.stdin.close()


class TestVectors:
    @pytest.mark.parametrize("model", [EMBEDDER, "embedding-mean-dense"])
    def test_they_are_those_of_the_running_server(self, served, tmp_path, model):
        inputs = texts(300, seed=1)
        path = tmp_path / "texts.txt"
        path.write_text("\n".join(inputs), "utf-8")
        expected = served_vectors(served(model), inputs)
        lines = vectors_of(embed("--input", path, model=model))
        assert lines.tobytes() == expected.tobytes()
        out = tmp_path / "vectors.npy"
        assert embed("--input", path, "--output-file", out, model=model).out == ""
        array = numpy.load(out)
        assert array.dtype == numpy.float32 and array.shape == expected.shape and array.tobytes() == expected.tobytes()
        assert sorted(file.name for file in tmp_path.iterdir()) == ["texts.txt", "vectors.npy"]

    def test_every_format_gives_the_same(self, tmp_path):
        inputs = ["mars is red", 'a "quoted"\nline', "빵"]
        rows = [{"id": number, "index": "x", "body": text} for number, text in enumerate(inputs)]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
        with open(tmp_path / "a.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("\n\n".join(map(json.dumps, rows)))
        expected = vectors_of(embed(*inputs))
        for name, indices in (("a.jsonl", [0, 1, 2]), ("a.csv", [0, 1, 2]), ("a.jsonl.gz", [0, 2, 4])):
            ended = embed("--input", tmp_path / name, "--field", "body")
            assert vectors_of(ended).tobytes() == expected.tobytes(), name
            assert [row["index"] for row in ended.lines()] == indices
            # The fields follow, and the one that is called like a field of the results has another name.
            assert list(ended.lines()[0]) == ["index", "embedding", "id", "input_index", "body"]
            assert [row["body"] for row in ended.lines()] == inputs
        ended = embed("--input", "-", "--field", "body", stdin=(tmp_path / "a.jsonl").read_bytes())
        assert vectors_of(ended).tobytes() == expected.tobytes()

    def test_they_are_cut_and_scaled_as_requested(self, served, tmp_path):
        inputs = texts(3, seed=2)
        server = served(EMBEDDER)
        for flags, fields in (
            (("--normalize", "false"), {"normalize": False}),
            (("--dimensions", 8), {"dimensions": 8}),
            (("--dimensions", 8, "--normalize", "false"), {"dimensions": 8, "normalize": False}),
        ):
            assert vectors_of(embed(*inputs, *flags)).tobytes() == served_vectors(server, inputs, **fields).tobytes(), flags
        out = tmp_path / "v.npy"
        embed(*inputs, "--dimensions", 8, "--output-file", out)
        assert numpy.load(out).shape == (3, 8)

    def test_memory_does_not_grow_with_the_texts(self, tmp_path):
        peaks = []
        for size in (2_000, 30_000):
            path = tmp_path / f"{size}.txt"
            path.write_text("\n".join(texts(size, seed=3, words=2)), "utf-8")
            out = tmp_path / f"{size}.npy"
            peaks.append(peak_memory(tmp_path / "out", "embed", "--model-id", MODELS / EMBEDDER, "--input", path, "--output-file", out))
            assert numpy.load(out, mmap_mode="r").shape[0] == size
        # The allocator's use varies by a few MB with the shapes of batches.
        assert peaks[1] - peaks[0] < 24 << 20, peaks


class TestResume:
    def test_killed_runs_are_continued_to_the_same_bytes(self, tmp_path):
        path = tmp_path / "texts.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts(3_000, seed=4, words=40)))
        for name in ("vectors.npy", "vectors.jsonl"):
            whole = tmp_path / f"whole-{name}"
            arguments = ["embed", "--model-id", MODELS / EMBEDDER, "--input", path]
            assert run(*arguments, "--output-file", whole).code == 0
            out = tmp_path / name
            command = [*arguments, "--output-file", out, "--resume", *ONE_THREAD]
            kills = [killed(out, command, int(whole.stat().st_size * part)) for part in (0.0, 0.2, 0.6)]
            assert kills[0] and any(kills[1:]), "the machine is too fast for this test: give it more texts"
            ended = run(*command)
            assert ended.code == 0, ended.err
            assert out.read_bytes() == whole.read_bytes()
            assert not list(tmp_path.glob("*.partial*"))
            # It is complete: nothing happens.
            ended = run(*command)
            assert (ended.code, ended.out) == (0, "") and "is complete already" in ended.err

    def test_a_file_that_may_not_grow_is_an_error_and_is_continued_later(self, tmp_path):
        path, out = tmp_path / "texts.txt", tmp_path / "vectors.jsonl"
        path.write_text("\n".join(texts(200, seed=6)), "utf-8")
        command = [BINARY, "embed", "--model-id", MODELS / EMBEDDER, "--input", path, "--output-file", out, "--resume"]
        # At most 8 or 16 KiB, by the unit of the shell.
        limited = ["sh", "-c", 'ulimit -f 16 && exec "$@"', "sh", *command]
        ended = subprocess.run(limited, capture_output=True, env=variables(), check=False, text=True)
        assert (ended.returncode, ended.stdout) == (1, ""), ended
        assert f"Error: `{out}.partial` cannot be written (File too large" in ended.stderr and "`--resume`" in ended.stderr
        assert run(*command[1:]).code == 0
        assert out.read_text("utf-8") == embed("--input", path).out

    def test_a_file_is_continued_with_the_same_arguments_only(self, tmp_path):
        out = tmp_path / "v.jsonl"
        texts = "a\nb\nc\n"
        whole = embed("--input", "-", stdin=texts).out.encode()
        # Killed within its second line.
        line = whole.index(b"\n") + 1
        stdin = ("--input", "-", "--output-file", out)
        partial, about = Path(f"{out}.partial"), Path(f"{out}.partial.json")
        with paused(out, b"a\n"):
            assert "another process writes" in embed(*stdin, "--resume", stdin="a\n").refusal()
        partial.write_bytes(whole[: line + 9])
        assert "continue it with `--resume`, or remove it" in embed(*stdin, stdin=texts).refusal()
        for flags, words in ((("--dimensions", 8), "Some("), (("--normalize", "false"), "normalize: true")):
            line_of_error = embed(*stdin, *flags, "--resume", stdin=texts).refusal()
            assert "cannot be continued" in line_of_error and words in line_of_error, line_of_error
        assert embed(*stdin, "--resume", stdin=texts).code == 0
        assert out.read_bytes() == whole and not about.exists()
        assert "exists: remove it" in embed(*stdin, stdin="a\n").refusal()

    def test_fewer_texts_than_vectors_are_refused(self, tmp_path):
        out = tmp_path / "v.jsonl"
        with paused(out, b"a\nb\nc\n"):
            pass
        line = embed("--input", "-", "--output-file", out, "--resume", stdin="a\nb\n").refusal()
        assert "has 3 vectors, but there are only 2 texts" in line


def test_input_that_cannot_be_embedded_is_refused_in_one_line(tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"a\nb\xff\n")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    cell = tmp_path / "cell.csv"
    cell.write_text("text,n\na,1\n,2\n")
    other = tmp_path / "texts.dat"
    other.write_text("a")
    for arguments, code, words in (
        (("--input", bad), 1, ["bad.txt`, line 2", "not UTF-8"]),
        (("--input", empty), 1, ["no text in", "empty.txt"]),
        (("--input", cell), 1, ["cell.csv`, record 2", "empty"]),
        (("--input", other), 2, ["texts.dat", "--format"]),
        (("a", "--format", "txt"), 2, ["--input"]),
        (("a", "--output", "npy"), 2, ["--output-file"]),
        (("a", "--output-file", tmp_path / "v.parquet"), 2, ["v.parquet", "--output"]),
        (("a", "--output-file", tmp_path / "none/v.npy"), 1, ["none/v.npy.partial", "check the folder"]),
        (("a", "--dimensions", 100_000), 1, ["--dimensions", "100000"]),
        (("a", "--prompt-name", "nobody"), 1, ["nobody"]),
    ):
        embed(*arguments).refusal(code, words)
    assert "is not an embedding model, but" in embed("a", model=RERANKER).err
    sparse = embed("a", model=MODELS.parent / "served/bert-splade-saved")
    assert "sparse vectors only" in sparse.err.splitlines()[-1]
    assert not list(tmp_path.glob("v.*"))


QUERIES = ["Which planet is known as the Red Planet?", "What is bread?", "행성"]


def judged(queries: list[str], documents: list[list[str]]) -> str:
    lines = [{"_id": f"q{number}", "query": query, "documents": [{"_id": f"d{index}", "text": text} if index % 2 else text for index, text in enumerate(list)]} for number, (query, list) in enumerate(zip(queries, documents, strict=True))]
    return "\n".join(map(json.dumps, lines))


class TestQueries:
    def test_each_is_ranked_as_alone(self, tmp_path):
        documents = [texts(20, seed=5), texts(1, seed=6), texts(300, seed=7)]
        path = tmp_path / "queries.jsonl"
        path.write_text(judged(QUERIES, documents), "utf-8")
        many = run("rerank", "--model-id", MODELS / RERANKER, "--queries", path)
        rows = many.lines()
        assert [(row["id"], row["query"]) for row in rows] == [(f"q{number}", query) for number, query in enumerate(QUERIES)]
        for row, query, candidates in zip(rows, QUERIES, documents, strict=True):
            alone = rerank(RERANKER, query, *candidates, "--output", "jsonl").lines()
            scores = {result["index"]: result["score"] for result in alone}
            assert [result["rank"] for result in row["results"]] == list(range(1, len(candidates) + 1))
            assert {result["index"]: result["score"] for result in row["results"]} == scores
            order = [result["score"] for result in row["results"]]
            assert order == sorted(order, reverse=True)
            assert all(result.get("id") == (f"d{result['index']}" if result["index"] % 2 else None) for result in row["results"])
        best = run("rerank", "--model-id", MODELS / RERANKER, "--queries", path, "--top-n", 2, "--raw-scores").lines()
        assert [[result["index"] for result in row["results"]] for row in best] == [[result["index"] for result in row["results"][:2]] for row in rows]
        assert any(result["score"] < 0 or result["score"] > 1 for row in best for result in row["results"])

    def test_a_run_of_trec_is_ranked_again(self, tmp_path):
        corpus = {f"d{number}": text for number, text in enumerate(texts(400, seed=8))}
        with gzip.open(tmp_path / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"docno": name, "body": text}) + "\n" for name, text in corpus.items())
        (tmp_path / "topics.tsv").write_text("docno\tquery\n" + "".join(f"{number}\t{query}\n" for number, query in enumerate(QUERIES)), "utf-8")
        generator = random.Random(9)
        first = {number: generator.sample(sorted(corpus), 30) for number in (2, 0)}
        (tmp_path / "first.run").write_text("".join(f"{number} Q0 {name} {rank} {-rank} bm25\n" for number, names in first.items() for rank, name in enumerate(names)), "utf-8")
        out = tmp_path / "new.run"
        arguments = ["rerank", "--model-id", MODELS / RERANKER, "--queries", tmp_path / "topics.tsv", "--run", tmp_path / "first.run", "--documents", tmp_path / "corpus.jsonl.gz", "--field", "body", "--id-field", "docno"]
        ended = run(*arguments, "--output-file", out)
        assert ended.code == 0, ended.err
        lines = [line.split() for line in out.read_text("utf-8").splitlines()]
        assert [line[0] for line in lines] == ["2"] * 30 + ["0"] * 30
        for number, names in first.items():
            alone = rerank(RERANKER, QUERIES[number], *(corpus[name] for name in names), "--output", "jsonl", "--raw-scores").lines()
            scores = {names[row["index"]]: row["score"] for row in alone}
            mine = [line for line in lines if line[0] == str(number)]
            assert {line[2]: float(line[4]) for line in mine} == scores
            assert [line[3] for line in mine] == [str(rank) for rank in range(1, 31)]
            assert [line[4] for line in mine] == sorted((line[4] for line in mine), key=float, reverse=True)
            assert {(line[1], line[5]) for line in mine} == {("Q0", "text-embeddings-router")}
        self.measured_by_ir_measures(out, lines)

    @staticmethod
    def measured_by_ir_measures(run_file: Path, lines: list[list[str]]) -> None:
        """Checks that the field's own reader finds the ranks: the relevant text is at a known one."""
        ranked = {query: [line[2] for line in lines if line[0] == query] for query in ("2", "0")}
        qrels = [ir_measures.Qrel(query, names[place], 1) for (query, names), place in zip(ranked.items(), (0, 3), strict=True)]
        found = list(ir_measures.read_trec_run(str(run_file)))
        assert [(row.query_id, row.doc_id, row.score) for row in found] == [(line[0], line[2], float(line[4])) for line in lines]
        means = ir_measures.calc_aggregate([ir_measures.RR, ir_measures.nDCG @ 10], qrels, found)
        assert means[ir_measures.RR] == pytest.approx((1 + 1 / 4) / 2)
        assert means[ir_measures.nDCG @ 10] == pytest.approx((1 + 1 / math.log2(5)) / 2)

    @pytest.mark.parametrize("form", ["trec", "jsonl"])
    def test_killed_runs_are_continued_to_the_same_bytes(self, tmp_path, form):
        queries = [f"{QUERIES[number % 3]} {number}" for number in range(60)]
        path = tmp_path / "queries.jsonl"
        path.write_text(judged(queries, [texts(8, seed=number) for number in range(60)]), "utf-8")
        arguments = ["rerank", "--model-id", MODELS / RERANKER, "--queries", path, "--output", form]
        whole, out = tmp_path / "whole", tmp_path / "out"
        assert run(*arguments, "--output-file", whole).code == 0
        command = [*arguments, "--output-file", out, "--resume"]
        kills = [killed(out, command, int(whole.stat().st_size * part)) for part in (0.0, 0.2, 0.6)]
        assert kills[0] and any(kills[1:]), "the machine is too fast for this test: give it more queries"
        ended = run(*command)
        assert ended.code == 0, ended.err
        assert out.read_bytes() == whole.read_bytes()

    def test_bad_files_are_refused_in_one_line(self, tmp_path):
        good = tmp_path / "good.jsonl"
        good.write_text('{"id": "a b", "query": "a", "documents": ["x"]}')
        broken = tmp_path / "broken.jsonl"
        broken.write_text('{"query": "a", "documents": ["x"]}\n{"query": "a", "documents": "x"}')
        bare = tmp_path / "bare.jsonl"
        bare.write_text('{"id": "q1", "query": "a"}')
        first = tmp_path / "first.run"
        first.write_text("q1 Q0 d9 1 1 tag\n")
        corpus = tmp_path / "corpus.jsonl"
        corpus.write_text('{"id": "d1", "text": "x"}')
        for arguments, code, words in (
            (("--queries", broken), 1, ["broken.jsonl`, line 2", "`documents`"]),
            (("--queries", bare), 1, ["bare.jsonl`, line 1", "--run"]),
            (("--queries", good, "--output", "trec"), 1, ["good.jsonl`, line 1", "`a b` has spaces"]),
            (("--queries", good, "--output", "csv"), 2, ["--output jsonl"]),
            (("--queries", good, "--documents", corpus), 2, ["--run"]),
            (("--queries", bare, "--run", first, "--documents", corpus), 1, ["first.run`, line 1", "`d9` is not in"]),
            (("--queries", tmp_path / "none.jsonl"), 1, ["none.jsonl", "cannot be read"]),
            (("--query", "a", "b", "--output", "trec"), 2, ["--queries"]),
        ):
            run("rerank", "--model-id", MODELS / RERANKER, *arguments).refusal(code, words)
