"""The binary's commands: `rerank` compared with the running server, its formats, errors and memory;
completions for shells and the manual page.
"""

import csv
import gzip
import io
import json
import random
import shutil
import subprocess
import unicodedata

import models
import pandas
import pytest
from command_line import peak_memory, rerank, run
from reference_data import CASES, EXPECTED
from server import BINARY, MODELS, variables

MODEL = "tied-bf16"
QUERY = "Which planet is known as the Red Planet?"
WORDS = "mars venus 행성 red planet bread 火星 known for its colour".split()


def documents(count: int, seed: int) -> list[str]:
    """Random texts of 2 to 12 words. The last word is a number, so that no two texts are equal."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 11)) + [str(number)]) for number in range(count)]


def write(path, texts, kind):
    """Writes a file of documents in one of the formats."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        if kind == "txt":
            file.writelines(text + "\n" for text in texts)
        elif kind == "jsonl":
            file.writelines(json.dumps({"id": 1, "text": text}) + "\n" for text in texts)
        else:
            delimiter = {"csv": ",", "tsv": "\t"}[kind]
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(["id", "text"])
            writer.writerows([[1, text] for text in texts])
    return path


def test_the_scores_are_those_of_the_running_server(server, tmp_path):
    texts = documents(700, seed=1)
    texts[3], texts[77] = "two\nlines, \"quoted\"", "x"
    ranks = server.rerank(QUERY, texts, raw_scores=True, instruction="Find colours")
    path = write(tmp_path / "documents.jsonl", texts, "jsonl")
    flags = ("--raw-scores", "--instruction", "Find colours", "--output", "jsonl")
    rows = rerank(MODEL, QUERY, "--documents", path, *flags).lines()
    # Both compute in float32. Their batches differ, so scores differ by rounding only.
    expected = {rank["index"]: rank["score"] for rank in ranks}
    assert {row["index"] for row in rows} == set(range(700))
    assert all(abs(row["score"] - expected[row["index"]]) <= 2e-5 for row in rows)
    assert all(row["text"] == texts[row["index"]] for row in rows)
    assert [row["rank"] for row in rows] == list(range(1, 701))
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)


def test_an_embedding_model_ranks_by_cosine_as_its_server_does(served):
    texts = documents(40, seed=2)
    for flags, fields in ((("--raw-scores",), {"raw_scores": True}), ((), {})):
        rows = rerank("embedding-last", QUERY, *texts, "--output", "jsonl", *flags).lines()
        expected = {rank["index"]: rank["score"] for rank in served("embedding-last").rerank(QUERY, texts, **fields)}
        assert {row["index"]: row["score"] for row in rows} == pytest.approx(expected, abs=2e-5)


def test_the_scores_are_those_of_transformers():
    expected = {row["name"]: row for row in EXPECTED[MODEL].values()}
    for name in ("english-1", "korean-1"):
        case = CASES[name]
        for flags, field in ((("--raw-scores",), "raw"), ((), "score")):
            (row,) = rerank(MODEL, case["query"], case["document"], "--output", "jsonl", *flags).lines()
            assert abs(row["score"] - expected[name][field]) <= 1e-4, name


def test_every_format_and_way_in_gives_the_same(tmp_path):
    texts = documents(40, seed=2)
    expected = rerank(MODEL, QUERY, *texts, "--output", "jsonl").lines()
    for kind in ("txt", "jsonl", "csv", "tsv"):
        path = write(tmp_path / f"documents.{kind}", texts, kind)
        piped = ("--documents", "-", "--format", kind)
        source, stdin = (piped, path.read_bytes()) if kind in ("txt", "csv") else (("--documents", path), b"")
        ended = rerank(MODEL, QUERY, *source, "--output", "jsonl", stdin=stdin)
        rows = ended.lines()
        assert [(row["index"], row["text"]) for row in rows] == [(row["index"], row["text"]) for row in expected]
        assert all(abs(a["score"] - b["score"]) <= 2e-5 for a, b in zip(rows, expected, strict=True))
        assert ended.err == ""
    best = rerank(MODEL, QUERY, *source, "--output", "jsonl", "--top-n", 3, stdin=stdin).lines()
    assert [row["index"] for row in best] == [row["index"] for row in expected[:3]]
    unsorted = rerank(MODEL, QUERY, *source, "--output", "jsonl", "--unsorted", stdin=stdin).lines()
    assert [(row["index"], row["text"]) for row in unsorted] == list(enumerate(texts))
    assert all("rank" not in row for row in unsorted)


def test_results_come_in_four_formats():
    texts = ["Mars, \"the\nred\" one", "bread"]
    rows = rerank(MODEL, QUERY, *texts, "--output", "jsonl").lines()
    assert json.loads(rerank(MODEL, QUERY, *texts, "--output", "json").out) == rows
    table = list(csv.DictReader(io.StringIO(rerank(MODEL, QUERY, *texts, "--output", "csv").out)))
    assert [(int(row["rank"]), int(row["index"]), row["text"]) for row in table] == [
        (row["rank"], row["index"], row["text"]) for row in rows
    ]
    shown = rerank(MODEL, QUERY, *texts).out.splitlines()
    assert shown[0].split() == ["rank", "score", "index", "text"] and len(shown) == 3
    assert all(f"{row['score']:.4f}" in line and "\x1b" not in line for row, line in zip(rows, shown[1:], strict=True))


ANIMALS = [
    {"id": 12345678901234567890123, "score": 7.5, "body": "mars is red", "tags": ["a", None]},
    {"body": "bread", "id": 2, "note": 'say "x",\nplease'},
]


@pytest.mark.parametrize("order", ["--raw-scores", "--unsorted"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "jsonl.gz"])
def test_a_result_has_the_other_fields_of_its_document(tmp_path, kind, order):
    path = tmp_path / f"documents.{kind}"
    text = json.dumps(ANIMALS, indent=1) if kind == "json" else "".join(json.dumps(animal) + "\n" for animal in ANIMALS)
    path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    arguments = ("--documents", path, "--field", "body", order)
    rows = rerank(MODEL, QUERY, *arguments, "--output", "jsonl").lines()
    for row in rows:
        animal = ANIMALS[row["index"]]
        assert list(row)[: len(row) - len(animal)] == ([] if order == "--unsorted" else ["rank"]) + ["index", "score"]
        fields = {("input_score" if name == "score" else name): value for name, value in animal.items()}
        assert list(row.items())[-len(animal) :] == list(fields.items())
    # A second model ranks the results of the first.
    again = rerank(MODEL, QUERY, "--documents", "-", "--field", "body", "--output", "jsonl", stdin="".join(json.dumps(row) + "\n" for row in rows))
    for row in again.lines():
        (first,) = (first for first in rows if first["id"] == row["id"])
        assert {f"input_{name}": first[name] for name in ("index", "score")}.items() <= row.items()
        assert row.get("input_input_score") == ANIMALS[first["index"]].get("score")
    ended = rerank(MODEL, QUERY, *arguments, "--output", "csv")
    if order == "--unsorted":
        assert f"{path}`, {'element' if kind == 'json' else 'line'} 2: the first document has no field `note`" in ended.refusal()
        return
    table = pandas.read_csv(io.StringIO(ended.out), dtype={"id": str}, keep_default_na=False)
    assert list(table.columns) == ["rank", "index", "score", "id", "input_score", "body", "tags", "note"]
    for row in table.to_dict("records"):
        animal = ANIMALS[row["index"]]
        assert (row["id"], row["body"], row["note"]) == (str(animal["id"]), animal["body"], animal.get("note", ""))
        assert row["input_score"] == str(animal.get("score", "")) and json.loads(row["tags"] or "null") == animal.get("tags")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_result_has_the_other_columns_of_its_document(tmp_path, separator):
    path = tmp_path / ("documents.tsv" if separator == "\t" else "documents.csv")
    header, records = ["id", "text", "", "id", "rank"], [["01", "mars, red", "x", "5", "9"], ["02", "bread", "", "6", "8"]]
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header[: 5 if separator != "," else 2]] + [record[: 5 if separator != "," else 2] for record in records])
    names = ["id", "text", "column_3", "id_2", "input_rank"][: 5 if separator != "," else 2]
    for flags, own in (((), ["rank", "index", "score"]), (("--unsorted",), ["index", "score"])):
        ended = rerank(MODEL, QUERY, "--documents", path, "--output", "csv", *flags)
        rows = list(csv.reader(io.StringIO(ended.out)))
        assert rows[0] == own + names
        assert all(row[len(own) :] == records[int(row[len(own) - 2])][: len(names)] for row in rows[1:])
        objects = rerank(MODEL, QUERY, "--documents", path, "--output", "jsonl", *flags).lines()
        assert [list(row.items())[len(own) :] for row in objects] == [list(zip(names, row[len(own) :], strict=True)) for row in rows[1:]]


def test_a_table_fits_its_terminal():
    texts = ["행성 " * 60, "red planet " * 40, "\x1b[31mred\x07"]
    for colours, variable in ((True, None), (False, "1")):
        screen = in_terminal(60, MODEL, QUERY, *texts, environment={"NO_COLOR": variable} if variable else {})
        lines = [line for line in screen.splitlines() if line]
        assert len(lines) == 4 and ("\x1b[36m" in screen) == colours, screen
        plain = [line.replace("\x1b[36m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines]
        assert all("\x1b" not in line and "\x07" not in line for line in plain), screen
        widths = [sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) for line in plain]
        assert max(widths) <= 60 and sorted(widths)[-2] >= 58, widths


def in_terminal(columns, model, query, *texts, environment):
    """The output of `rerank` in a terminal with `columns` columns."""
    import fcntl
    import os
    import pty
    import struct
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [str(BINARY), "rerank", "--model-id", str(MODELS / model), "--query", query, *texts]
    process = subprocess.Popen(command, stdout=its, stderr=subprocess.PIPE, env=variables(environment | {"TERM": "xterm-256color"}))
    os.close(its)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait(60) == 0, process.stderr.read()
    process.stderr.close()
    return written.decode().replace("\r\n", "\n")


def test_blank_lines_are_left_out_but_count():
    rows = rerank(MODEL, QUERY, "--documents", "-", "--output", "jsonl", stdin="\ufeffa\r\n\r\n  \nb\n").lines()
    assert sorted((row["index"], row["text"]) for row in rows) == [(0, "a"), (3, "b")]


def test_memory_does_not_grow_with_the_documents(tmp_path):
    vocabulary = json.loads((MODELS / MODEL / "config.json").read_text())["vocab_size"]
    tiny = models.make_tiny(tmp_path / "tiny", MODELS / MODEL, vocabulary)
    model = ("--model-id", tiny, "--model-type", "listwise-reranker")
    sizes, peaks = (5_000, 50_000), {}
    for size in sizes:
        path = write(tmp_path / f"{size}.txt", documents(size, seed=size), "txt")
        for flags in (("--top-n", 5), ("--unsorted",)):
            out = tmp_path / "out.jsonl"
            command = ("rerank", *model, "--query", QUERY, "--documents", path, "--output", "jsonl")
            peaks[size, flags] = peak_memory(out, *command, *flags)
            assert len(out.read_text().splitlines()) == (5 if "--top-n" in flags else size)
    for flags in {flags for _, flags in peaks}:
        growth = peaks[sizes[1], flags] - peaks[sizes[0], flags]
        # 45,000 documents held as strings would be more than 4 MB; the allocator's use varies about as much
        # by batch shapes.
        assert growth < 24 << 20, f"{flags}: {growth}"


def test_each_answer_comes_while_standard_input_pauses():
    command = [str(BINARY), "rerank", "--model-id", str(MODELS / MODEL), "--query", QUERY, "--documents", "-"]
    process = subprocess.Popen(
        [*command, "--output", "jsonl", "--unsorted"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables()
    )
    # Each answer is read before the next line is sent: this ends only if no answer waits for more documents.
    for index, lines in enumerate((["a"], ["bread"], ["mars is red"])):
        process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        process.stdin.flush()
        row = json.loads(process.stdout.readline())
        assert (row["index"], row["text"]) == (index, lines[0]), row
    process.stdin.close()
    assert process.stdout.read() == b"" and process.wait(60) == 0
    process.stdout.close()


def test_a_hyphen_in_place_of_texts_is_standard_input():
    lines = "mars is red\nbread\n"
    piped = rerank(MODEL, QUERY, "--documents", "-", "--output", "jsonl", stdin=lines).lines()
    assert rerank(MODEL, QUERY, "-", "--output", "jsonl", stdin=lines).lines() == piped and len(piped) == 2
    (row,) = rerank(MODEL, QUERY, "-", "--field", "body", "--output", "jsonl", stdin='{"body": "a"}\n').lines()
    assert row["body"] == "a"
    rerank(MODEL, QUERY, "a", "-").refusal(2, words=["`-` means standard input", "no further texts"])


def test_the_short_help_fits_a_terminal():
    lines = run("-h", environment={"COLUMNS": "80"}).out.splitlines()
    assert len(lines) <= 40 and all(len(line) <= 80 for line in lines), lines


def test_lines_of_json_on_standard_input_are_not_scored_as_text():
    lines = '{"text": "mars is red"}\n{"text": "bread"}\n'
    rows = rerank(MODEL, QUERY, "--documents", "-", "--output", "jsonl", stdin=lines).lines()
    assert sorted(row["text"] for row in rows) == ["bread", "mars is red"]
    rows = rerank(MODEL, QUERY, "--documents", "-", "--field", "body", "--output", "jsonl", stdin='{"body": "a"}\n').lines()
    assert [row["body"] for row in rows] == ["a"] and "text" not in rows[0]
    for stdin, words in (
        ('{"body": "a"}\n', ["standard input, line 1", "no field `text`, but `body`", "--field"]),
        ('[{"text": "a"}]\n', ["standard input, line 1", "a list of JSON objects", "--format txt"]),
        ('{\n"text": "a"\n}\n', ["standard input, line 1", "several lines", "--format txt"]),
    ):
        rerank(MODEL, QUERY, "--documents", "-", stdin=stdin).refusal(words=words)


def test_progress_counts_the_documents(tmp_path):
    import os
    import pty

    path = write(tmp_path / "documents.txt", ["word " * 300] * 60, "txt")
    ours, its = pty.openpty()
    # A short name, which fits a line of the terminal.
    command = [str(BINARY), "rerank", "--model-id", f"./{MODEL}", "--query", QUERY, "--documents", str(path), "--threads", "1"]
    environment = variables({"TERM": "xterm-256color"})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=its, env=environment, cwd=MODELS)
    os.close(its)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:
        pass
    os.close(ours)
    assert process.wait(120) == 0
    said = written.decode()
    assert "Loading " in said and MODEL in said, said
    # A machine that is fast enough needs no bar.
    assert len(said.splitlines()) <= 2 or "documents scored" in said, said


def test_a_reader_that_stops_reading_causes_no_error(tmp_path):
    path = write(tmp_path / "documents.txt", documents(3_000, seed=4), "txt")
    for flags in (("jsonl", "--unsorted"), ("jsonl",), ("csv",)):
        command = [str(BINARY), "rerank", "--model-id", str(MODELS / MODEL), "--query", QUERY, "--documents", str(path)]
        process = subprocess.Popen([*command, "--output", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables())
        assert b"score" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 0
        process.stderr.close()


def test_input_that_cannot_be_ranked_is_refused_in_one_line(tmp_path):
    good = write(tmp_path / "good.txt", ["a", "b"], "txt")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"a\nb\xff\n")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "a"}\n{"body": "b"}\n')
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    long = tmp_path / "long.txt"
    long.write_text("a\nb\n" + "word " * 9000 + "\nc\n")
    other = tmp_path / "documents.dat"
    other.write_text("a")
    alone = tmp_path / "alone.json"
    alone.write_text('{"text": "a"}')
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(b"text\na\n")
    for arguments, code, words in (
        (("--documents", alone), 1, ["alone.json`: the JSON must be a list", "--format"]),
        (("--documents", packed), 1, ["packed.csv.gz`: ", "check the file and `--format`"]),
        (("--documents", bad), 1, ["bad.txt`, line 2", "not UTF-8"]),
        (("--documents", broken), 1, ["broken.jsonl`, line 2", "`text`", "--field"]),
        (("--documents", empty), 1, ["no document", "empty.txt"]),
        (("--documents", tmp_path), 2, ["--format"]),
        (("--documents", tmp_path, "--format", "txt"), 1, ["is a folder"]),
        (("--documents", tmp_path / "nowhere.txt"), 1, ["nowhere.txt", "cannot be read"]),
        (("--documents", other), 2, ["documents.dat", "--format"]),
        (("--documents", good, "--field", "x"), 2, ["--field"]),
        (("--documents", long, "--auto-truncate", "false"), 1, ["long.txt`, line 3", "8192"]),
        (("--documents", good, "--unsorted"), 2, ["--unsorted", "jsonl"]),
        (("--documents", good, "--output-file", "x.jsonl"), 2, ["--output-file", "needs `--queries`"]),
        (("--documents", good, "--run", "x.run"), 2, ["--run", "needs `--queries`"]),
        (("a", "--format", "txt"), 2, ["--documents"]),
    ):
        rerank(MODEL, QUERY, *arguments).refusal(code, words)
    assert "--query" in rerank(MODEL, "  ", "a").refusal(2)
    assert "no such directory" in run("rerank", "--model-id", "./nowhere", "--query", "x", "a").refusal()
    labels = rerank("seq-cls-3", QUERY, "a")
    assert labels.code == 1 and "is not a re-ranker, but classifier" in labels.err.splitlines()[-1]
    wrong = run("rerank", "--model-id", MODELS / MODEL, "a")
    assert wrong.code == 2 and "--query" in wrong.err


def test_truncation_is_reported(tmp_path):
    path = write(tmp_path / "documents.txt", ["a", "word " * 9000], "txt")
    ended = rerank(MODEL, QUERY, "--documents", path, "--output", "jsonl", "--max-input-length", 200)
    assert len(ended.lines()) == 2 and "1 of 2 documents" in ended.err and "--max-input-length" in ended.err


def test_variables_set_flags_of_commands_and_those_of_the_server_do_no_harm():
    environment = {"MODEL_ID": str(MODELS / MODEL), "PORT": "tcp://10.0.0.1:80", "LOG_LEVEL": "info"}
    ended = run("rerank", "--query", QUERY, "a", "--output", "json", environment=environment)
    assert len(json.loads(ended.out)) == 1 and "Loaded in" in ended.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "elvish", "powershell"])
def test_completions_are_scripts(shell):
    ended = run("completions", shell)
    assert ended.code == 0 and "rerank" in ended.out and "--model-id" in ended.out.replace("l model-id", "--model-id")
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=ended.out, capture_output=True, text=True, timeout=60)
        assert checked.returncode == 0, checked.stderr


def test_bash_completes_commands_and_flags(tmp_path):
    script = tmp_path / "completions"
    script.write_text(run("completions", "bash").out)
    ask = f"""
        source {script}
        COMP_WORDS=(text-embeddings-router "$@"); COMP_CWORD=$#
        _text__embeddings__router text-embeddings-router "${{@: -1}}" "${{@: -2:1}}" 2>/dev/null
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """

    def complete(*words):
        return subprocess.run(["bash", "-c", ask, "text-embeddings-router", *words], capture_output=True, text=True, timeout=60).stdout.split()

    assert complete("re") == ["rerank"]
    assert complete("rerank", "--top") == ["--top-n"]
    assert complete("rerank", "--output", "js") == ["json", "jsonl"]
    assert complete("em") == ["embed"]
    assert complete("embed", "--output", "n") == ["npy"]
    assert complete("rerank", "--queries", str(tmp_path / "comp")) == [str(script)]
    assert complete("--prom") == ["--prometheus-port"]
    assert complete("--instruction-set", "port") == ["portable"]
    # A template is a family's name or a file.
    assert complete("--chat-template", "zer") == ["zerank"]
    assert complete("rerank", "--chat-template", str(tmp_path / "comp")) == [str(script)]


def test_the_manual_renders():
    for arguments, words in (([], ["--model-id", "rerank"]), (["rerank"], ["--query", "--top-n", "EXTRA", ".gz"])):
        ended = run("man", *arguments)
        assert ended.code == 0 and ended.out.startswith(".ie") and ".TH" in ended.out, ended.err
        plain = ended.out.replace("\\-", "-")
        assert all(word in plain for word in words), plain
        if shutil.which("man"):
            shown = subprocess.run(["man", "-l", "-"], input=ended.out, capture_output=True, text=True, timeout=60)
            assert shown.returncode == 0 and "NAME" in shown.stdout, shown.stderr
    assert "there is no command `x`" in run("man", "x").refusal(2)
