"""Bodies that would cost far more than their bytes, one after the other: each is answered or refused in
words, and takes little memory meanwhile."""

from attackers import BODIES, posted
from server import MODELS as FIXTURES

# The most memory for a body of 2 MB. Before they were bounded, some of these took 140 to 750 MiB, or minutes.
MOST = 100 << 20
MODELS_FILE = """
[models.ranks]
model-id = "{}"
[models.embeds]
model-id = "{}"
"""


def test_bodies_cost_about_their_bytes(target, bystander, record, tmp_path):
    file = tmp_path / "models.toml"
    file.write_text(MODELS_FILE.format(*(FIXTURES / name for name in ("tied-bf16", "embedding-last"))))
    aim = target("--payload-limit", "3000000", model=file)
    bodies = [body for body in BODIES if body[0] != "/embed_all"]
    with bystander(aim) as others:
        for body in bodies:
            before = aim.process("memory").reset_peak()
            posted(aim, body)
            grown = aim.process("memory").peak_memory() - before
            assert grown < MOST, f"{body[0]}: {grown >> 20} MiB"
    assert not others.lost, others.lost
    record("bodies of 2 MB that would cost gigabytes or minutes", len(bodies), len(others.lost), "answered or refused, at most 100 MB for each")
