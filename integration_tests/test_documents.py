"""Every command in every document runs and prints the shown output (`document_blocks` has the rules).

Links, named files and named tests exist.
"""

import re
import shlex
import subprocess
from collections import Counter

import document_blocks
import pytest
from document_blocks import LANGUAGES, Session, blocks, check_output
from server import ANSWER_LIMIT, ROOT, run

TRACKED = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
# Written by programs; the commands of cli.md are the examples of `--help`.
GENERATED = re.compile(r"docs/cli\.md|benches/results/.*|models/tiny-reranker/EVAL\.md")
DOCUMENTS = [name for name in TRACKED if name and not GENERATED.fullmatch(name) and (ROOT / name).is_file()]
MIGRATING = ROOT / "docs/migrating.md"
# Why blocks are not run, by document. A block that is added here is one that nobody checks.
NOT_RUN: dict[str, dict[str, int]] = {
    "README.md": {"PyPI": 2, "minutes of compiling": 1},
    "deploy/compose/README.md": {"Docker": 2},
    "deploy/haproxy/README.md": {"Kubernetes": 1},
    "deploy/helm/README.md": {"Kubernetes": 2},
    "docs/backends.md": {"a build with another feature": 1, "PyTorch": 1},
    "docs/choosing.md": {"a benchmark": 1},
    "docs/command-line.md": {"pyarrow": 1, "the Hub": 1},
    "docs/embeddings.md": {"PyPI": 1, "the Hub": 1},
    "docs/evaluate.md": {"PyPI": 3, "PyPI and the Hub": 1, "minutes of compiling": 1},
    "docs/files.md": {"the Hub": 1},
    "docs/gpu.md": {"a GPU": 2},
    "examples/README.md": {"PyPI": 1},
    "docs/migrating.md": {"Docker": 3, "two servers of yours": 2},
    "docs/models-file.md": {"the Hub": 1},
    "docs/models.md": {"the Hub": 2},
    "docs/performance-details.md": {"a benchmark": 1},
    "docs/hardening.md": {"a server of yours": 1},
    "docs/rerankers.md": {"the Hub": 2},
    "docs/scaling.md": {"Ray": 1, "minutes of compiling": 1},
    "integration_tests/reference/README.md": {"PyTorch": 2},
    "models/tiny-reranker/train/README.md": {"PyTorch": 1},
    "python/README.md": {"PyPI": 1},
}


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if blocks(ROOT / name)])
def test_the_commands_of_a_document(name, served, tmp_path):
    session = Session(tmp_path, served)
    for block in blocks(ROOT / name):
        if block.language in ("sh", "python") and not block.reason:
            session.run(block)


def commands_not_run() -> list[str]:
    """Our commands in blocks that are not run, and the examples of `--help`, as their arguments."""
    texts = [block.text for name in DOCUMENTS for block in blocks(ROOT / name) if block.reason]
    texts.append((ROOT / "docs/cli.md").read_text(encoding="utf-8"))
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    found = (re.search(r"text-embeddings-router(?::[\d.]+)? +((?:--model-id |--backend |rerank |download |bench |verify |health|man )[^|>&)#]*)", line) for line in lines)
    return [match[1] for match in found if match and "<" not in match[1]]


def test_flags_of_commands_that_are_not_run_exist():
    commands = commands_not_run()
    assert len(commands) >= 30
    for command in commands:
        # Help is printed only if everything before it can be read.
        ended = run(*shlex.split(command), "--help")
        # A binary without a backend says so after it has found the flag.
        lacks = "--backend" in command and "without the Cargo feature" in ended.stderr
        assert ended.returncode == 0 or lacks, f"{command}: {ended.stderr}"


def test_what_is_not_run_is_counted():
    reasons = {
        name: dict(Counter(block.reason for block in blocks(ROOT / name) if block.reason)) for name in DOCUMENTS
    }
    assert {name: counts for name, counts in reasons.items() if counts} == NOT_RUN


def test_the_comparison_of_two_servers(served):
    """The block of docs/migrating.md that is not run with the others, because it needs two servers."""
    (script,) = [block.text for block in blocks(MIGRATING) if "ask()" in block.text]
    one, other = served("embedding-last"), served("embedding-mean-dense")
    for second, is_equal in ((one, True), (other, False)):
        filled = script.replace("http://tei:8080", one.url).replace("http://new:8080", second.url)
        ended = subprocess.run(["bash", "-c", filled], capture_output=True, text=True, timeout=ANSWER_LIMIT)
        cosines = [float(line.split()[1]) for line in ended.stdout.splitlines()]
        assert len(cosines) == 2, ended.stdout + ended.stderr
        assert (cosines == pytest.approx([1, 1], abs=1e-5)) == is_equal, cosines


def test_the_load_of_the_comparison(served):
    server = served("demo")
    command = next(line for block in blocks(MIGRATING) for line in block.text.splitlines() if "bench --url http://new:8080" in line)
    arguments = command.split()[1:]
    changed = {"http://new:8080": server.url, "60": "1", "200": "5"}
    ended = run(*[changed.get(argument, argument) for argument in arguments])
    assert ended.returncode == 0 and re.search(r"errors +none", ended.stdout), ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("shown", "printed", "is_equal"),
    [
        ("score 0.5000", "score 0.50004", True),
        ("score 0.5000", "score 0.5002", False),
        ("score 0.5", "score 0.7", False),
        ("7 texts", "8 texts", False),
        ("a … c", "a b c", True),
        ("a … c", "a b d", False),
        ('[{"a":1},\n {"b":2}]', '[{"a":1},{"b":2}]', True),
        ('[{"a":1}]', '[{"a":1},{"b":2}]', False),
        ("a\nb", "a b", False),
        ("one line", "one line\nanother", False),
    ],
)
def test_what_is_shown_is_compared(shown, printed, is_equal):
    if is_equal:
        check_output(shown, printed, "here")
    else:
        with pytest.raises(AssertionError):
            check_output(shown, printed, "here")


def test_every_block_says_how_it_is_tested():
    for name in DOCUMENTS:
        for block in blocks(ROOT / name):
            assert block.language in LANGUAGES - {"output"}, f"{block}: {block.language!r} is none of {sorted(LANGUAGES)}"
            if block.language == "text":
                first = block.text.split()[0]
                assert first not in ("$", "curl", "make", "cargo", "docker", "pip", "python", "python3", *document_blocks.NAMES), block


def anchors(name: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^( *)```.*?^\1```$", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    wrong = []
    for name in [*DOCUMENTS, "docs/cli.md"]:
        text = re.sub(r"^( *)```.*?^\1```$|`[^`\n]*`", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(\s*([^)\s]+)\s*\)", text):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (ROOT / name).parent / path if path else ROOT / name
            if not target.exists() or (anchor and anchor not in anchors(str(target.resolve().relative_to(ROOT)))):
                wrong.append(f"{name}: {link}")
    # Messages and comments name documents by their path from the root.
    for kind in ("*.rs", "*.py", "*.js", "*.html", "*.yaml", "*.toml", "Makefile"):
        for line in subprocess.run(["git", "grep", "-noE", r"\bdocs/[a-z-]+\.md(#[a-z0-9-]+)?", "--", kind], cwd=ROOT, text=True, capture_output=True).stdout.splitlines():
            place, number, link = line.split(":", 2)
            path, _, anchor = link.partition("#")
            if not (ROOT / path).exists() or (anchor and anchor not in anchors(path)):
                wrong.append(f"{place}:{number}: {link}")
    assert not wrong, "\n".join(wrong)


# Files of other projects, and a placeholder.
NOT_OURS = {"models/NAME.rs", "gemma3.rs", "flash_qwen3.rs", "server.rs"}


def test_every_named_file_and_test_is_there():
    """`path/file.rs::test` in the table of differences, and paths of sources everywhere else."""
    sources = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.splitlines()
    wrong = []
    for name in DOCUMENTS:
        if name == "CHANGELOG.md":
            continue
        path = ""
        text = (ROOT / name).read_text(encoding="utf-8")
        # The way of a request is drawn in a block, a path at the beginning of each line.
        wrong += [f"{name}: {path}" for path in re.findall(r"^  ([\w/]+/[\w/]+\.rs)\b", text, re.MULTILINE) if path not in sources]
        for reference in re.findall(r"`([\w/.-]*\.(?:rs|py)|[\w/.-]*\.(?:rs|py)::\w+|::\w+)`", text):
            path, _, test = (reference if not reference.startswith("::") else path + reference).partition("::")
            if path in NOT_OURS:
                continue
            # Paths may leave out the folders that their section names.
            holders = [source for source in sources if f"/{source}".endswith("/" + path.removeprefix("../"))]
            if not holders or (test and not any(re.search(rf"\bfn {test}\b|\bdef {test}\b", (ROOT / source).read_text(encoding="utf-8")) for source in holders)):
                wrong.append(f"{name}: {reference} ({path})")
    assert not wrong, "\n".join(wrong)
