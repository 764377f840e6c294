// Makes elements. Texts become text nodes: no file of the page parses text as markup.

/**
 * An element with attributes and children. Attributes such as `onclick` are listeners; false and undefined
 * are left out. Strings among the children become text.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== ""));
  return made;
}

/** The element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** "1 token", "1,234 tokens". */
export function amount(count, word, words = `${word}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? word : words}`;
}

/** Copies text to the clipboard, also on a page over plain HTTP, where browsers offer no clipboard. */
export async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Permission was denied; the old way may still work.
    }
  }
  const focused = document.activeElement;
  const field = element("textarea", { class: "offscreen", "aria-hidden": "true", tabindex: "-1" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
