// A prompt, piece by piece: the part that all documents share, the document, the rest, and the part cut off.

import { amount, element } from "./elements.js";

/** An element that shows an answer of `/playground/prompt`. */
export function promptOf(shown) {
  const { pieces, tokens, truncated_tokens: cut, max_input_length: most } = shown;
  const isDocument = (piece) => piece.kind === "document";
  const [start, end] = [pieces.findIndex(isDocument), pieces.findLastIndex(isDocument) + 1];
  const left = cut === 0 ? "" : ` ${amount(cut, "token")} too many ${cut === 1 ? "was" : "were"} cut.`;
  const part = (title, note, from, to) => partOf(title, note, pieces.slice(from, to));
  const isFixed = pieces.slice(end).every((piece) => piece.kind === "template");
  return element(
    "div",
    { class: "prompt" },
    element("p", { class: "total" }, `${amount(tokens, "token")} of at most ${most.toLocaleString("en")}.${left}`),
    part("Shared prefix", "computed once for all documents of the query", 0, start),
    part("Document", "", start, end),
    part("Suffix", isFixed ? "never cut: the answer is read off its last token" : "", end, pieces.length),
  );
}

function partOf(title, note, pieces) {
  if (pieces.length === 0) return "";
  const count = (cut) => pieces.filter((piece) => piece.cut === cut).reduce((sum, piece) => sum + piece.tokens, 0);
  const lost = count(true);
  const marked = pieces.flatMap((piece, index) => markedPiece(piece, pieces[index - 1]));
  return element(
    "section",
    { class: "part", "aria-label": title },
    element(
      "p",
      { class: "part-title" },
      element("strong", {}, title),
      ` ${amount(count(false), "token")}${lost ? `, ${lost.toLocaleString("en")} cut` : ""}`,
      note ? element("span", { class: "hint" }, ` ${note}`) : "",
    ),
    element("div", { class: "pieces", dir: "auto", tabindex: "0", role: "region", "aria-label": `${title}, text` }, ...marked),
  );
}

/** A piece with a mark before or after it, where it was cut. */
function markedPiece(piece, before) {
  const name = `piece ${piece.kind}`;
  const tag = piece.kind === "template" ? "" : element("span", { class: "tag" }, `${piece.kind} ${piece.tokens.toLocaleString("en")}`);
  if (!piece.cut) return [element("span", { class: name }, tag, piece.text)];
  const gone = element("del", { class: `${name} cut` }, piece.text);
  if (piece.tokens === 0) return [gone];
  const isEnd = before !== undefined && before.kind === piece.kind && !before.cut;
  const where = isEnd ? "cut from here on" : "cut up to here";
  const mark = element("span", { class: "mark" }, `✂ ${where}: ${amount(piece.tokens, "token")} not read`);
  return isEnd ? [mark, gone] : [gone, mark];
}
