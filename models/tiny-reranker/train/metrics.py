"""The measures of EVAL.md: pairs in the right order, NDCG@10, calibration; and BM25, the one to beat.

Input: groups and scores. Output: numbers.
"""

import math
import re
from collections import defaultdict

from rank_bm25 import BM25Okapi

from families import texts
from groups import Group

Scores = list[list[float]]


def terms(text: str) -> list[str]:
    """The terms that BM25 counts: words in lower case.

    Korean words also give their pairs of characters; Chinese text gives only pairs of characters.
    """
    found = []
    for word in re.findall(r"[\w]+", text.lower()):
        if re.search(r"[\u4e00-\u9fff]", word):
            found += [word[index : index + 2] for index in range(max(1, len(word) - 1))]
        elif re.search(r"[가-힣]", word):
            found += [word] + [word[index : index + 2] for index in range(len(word) - 1)]
        else:
            found.append(word)
    return found


def bm25(groups: list[Group]) -> Scores:
    """BM25 scores; the rarity of a term is counted over all documents of the groups."""
    index = BM25Okapi([terms(document.text()) for document in texts(groups)])
    result, start = [], 0
    for group in groups:
        places = list(range(start, start + len(group.documents)))
        result.append([float(score) for score in index.get_batch_scores(terms(group.query), places)])
        start += len(places)
    return result


def pairs(groups: list[Group], scores: Scores) -> dict[str, tuple[float, int]]:
    """Share of pairs (relevant, not relevant) in the right order, and the number of pairs.

    By kind of negative, and for `all`. A tie counts half.
    """
    won: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for group, values in zip(groups, scores, strict=True):
        marked = list(zip(group.documents, values, strict=True))
        for good, high in marked:
            for bad, low in marked:
                if good.relevant and not bad.relevant:
                    for kind in (bad.kind, "all"):
                        won[kind] += 1.0 if high > low else 0.5 if high == low else 0.0
                        count[kind] += 1
    return {kind: (won[kind] / count[kind], count[kind]) for kind in count}


def ndcg(groups: list[Group], scores: Scores) -> float:
    """Mean NDCG@10; documents with equal scores keep the order in which they were given."""
    total = 0.0
    for group, values in zip(groups, scores, strict=True):
        order = sorted(range(len(values)), key=lambda index: -values[index])
        gains = [group.documents[index].relevant for index in order][:10]
        ideal = min(10, sum(document.relevant for document in group.documents))
        best = sum(1 / math.log2(rank + 2) for rank in range(ideal))
        total += sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains)) / best
    return total / len(groups)


def first(groups: list[Group], scores: Scores) -> float:
    """Share of groups in which a relevant document has the highest score."""
    hits = [group.documents[max(range(len(values)), key=values.__getitem__)].relevant for group, values in zip(groups, scores, strict=True)]
    return sum(hits) / len(hits)


def chance(groups: list[Group]) -> float:
    """The value of `first` for scores by chance."""
    return sum(sum(document.relevant for document in group.documents) / len(group.documents) for group in groups) / len(groups)


def calibration(groups: list[Group], scores: Scores) -> tuple[list[tuple[str, int, float, float]], float]:
    """A row for each of ten ranges of the score, and the expected calibration error.

    A row has the range, the number of documents, their mean score, and the share that is relevant.
    """
    ranges: list[list[tuple[float, bool]]] = [[] for _ in range(10)]
    for group, values in zip(groups, scores, strict=True):
        for document, value in zip(group.documents, values, strict=True):
            score = 1 / (1 + math.exp(-value))
            ranges[min(9, int(score * 10))].append((score, document.relevant))
    total, rows, error = sum(map(len, ranges)), [], 0.0
    for index, members in enumerate(ranges):
        if members:
            mean = sum(score for score, _ in members) / len(members)
            share = sum(relevant for _, relevant in members) / len(members)
            error += abs(mean - share) * len(members) / total
            rows.append((f"{index / 10:.1f} to {(index + 1) / 10:.1f}", len(members), mean, share))
    return rows, error
