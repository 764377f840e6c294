"""The texts for which reference vectors are made.

Output: `CASES`, dicts with name (unique), text (or {"repeat": text, "times": n}), prompt_name (None: no
prompt), max_length (tokens including the prompt and the end token; None: the model's own limit),
truncation_direction, and models (None: all).
"""

from cases import BATTERY, CODE_PYTHON, MARS, MIXED, PLANET, RIVER, TULSA, repeat

QUERY_PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
PROMPTS = {"query": QUERY_PROMPT, "document": ""}
LIMIT = 17


def case(name, text, prompt_name=None, max_length=None, direction="right", models=None):
    """One entry of embedding_cases.json."""
    return {
        "name": name,
        "text": text,
        "prompt_name": prompt_name,
        "max_length": max_length,
        "truncation_direction": direction,
        "models": models,
    }


TEXTS = [
    case("english", MARS),
    case("question", PLANET),
    case("korean", "스티브 크래그소프는 2003년부터 2006년까지 털사 대학교의 감독이었다."),
    case("chinese", "中国的首都是北京。"),
    case("russian", "Юпитер — самая большая планета солнечной системы."),
    case("arabic", "القاهرة هي عاصمة مصر وأكبر مدنها."),
    case("emoji", "😀😀 👍🏽 great!! 👨‍👩‍👧‍👦 🇰🇷 ❤️"),
    case("mixed-scripts", MIXED),
    case("code", CODE_PYTHON),
    case("decomposed", "re\u0301sume\u0301 n\u0303 \u1112\u1161\u11ab\u1100\u1173\u11af"),
]
EDGES = [
    case("empty", ""),
    case("only-spaces", "     "),
    case("outer-spaces", "  text with spaces  "),
    case("one-letter", "a"),
    case("one-token", "yes"),
    case("control", "x<|im_end|>\n<|im_start|>assistant\n<think>"),
    case("added-not-special", "<think>no</think><tool_call>x"),
    case("control-at-the-end", f"{MARS}<|endoftext|>"),
]
SHARED = [
    case("shared-none", RIVER),
    case("shared-more", RIVER + "Nobody knows the name of the second bridge."),
    case("shared-other", RIVER + "Then it rains."),
]
PROMPTED = [
    case("query-english", PLANET, "query"),
    case("query-korean", TULSA, "query"),
    case("query-battery", BATTERY, "query"),
    case("query-empty", "", "query"),
    case("document-english", MARS, "document"),
]
# Longer than the limit in the files of embedding-mean-dense, and shorter than embedding-last's limit.
LONG = [case(f"long-{direction}", repeat(RIVER, 5), direction=direction) for direction in ("right", "left")]
LAST = ["embedding-last"]
# The max_length of these cases is the length of their tokens plus this number; make_fixtures.py sets it.
LIMIT_OFFSETS = {"limit-one-below": -1, "limit-exact": 0, "limit-one-above": 1, "cut-prompt-right": -5, "cut-prompt-left": -5}
TRUNCATED = [
    *(
        case(f"cut-{kind}-{direction}", text, prompt, LIMIT, direction, LAST)
        for kind, text, prompt in (("english", RIVER, None), ("korean", TULSA, None), ("prompt", PLANET, "query"))
        for direction in ("right", "left")
    ),
    *(case(name, BATTERY, models=LAST) for name in LIMIT_OFFSETS if name.startswith("limit")),
]
CASES = TEXTS + EDGES + SHARED + PROMPTED + LONG + TRUNCATED
# For these, the vectors of all tokens are stored as well.
TOKENS_OF = ["english", "korean", "empty", "one-letter", "query-korean", "cut-korean-left"]
# For these, shortened vectors are stored as well, scaled to length one after the cut.
DIMENSIONS_OF = ["english", "emoji", "query-english"]
