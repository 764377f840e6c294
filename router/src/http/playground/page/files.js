// Files that are dropped on the page or chosen with a button. They go into a field and are not sent anywhere.

/** More bytes would make the field slow. */
const MAX_BYTES = 4 << 20;

/**
 * Puts files into `field`: those dropped anywhere on the page, where `area` shows that they may be, and those
 * that `button` lets the user choose for `input`. Then calls `done` with the file's name, or `complain`.
 */
export function acceptFiles({ area, button, input, field, complain, done }) {
  const read = async (file) => {
    if (file === undefined) return;
    if (file.size > MAX_BYTES) return complain(`${file.name} has more than 4 MB: use the command “rerank” for it.`);
    try {
      field.value = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch (error) {
      return complain(error instanceof TypeError ? `${file.name} is not a text in UTF-8.` : `${file.name} cannot be read.`);
    }
    complain("");
    done(file.name);
  };
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    area.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) area.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    area.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    read(event.dataTransfer.files[0]);
  });
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    read(input.files[0]);
    // The same file can be chosen again.
    input.value = "";
  });
}
