// What is broken in the layout of the page, as sentences: for tests/web/test_layout.py.
const found = [];
const shown = (element) => element.getClientRects().length > 0 && element.checkVisibility();
const told = (element) => element.outerHTML.slice(0, 120);
const lines = (rectangles) => new Set([...rectangles].filter((r) => r.width > 0).map((r) => Math.round(r.top))).size;

const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} wide of ${page.clientWidth}`);

// Numbers, and the texts of buttons, in one line each.
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text = texts.nextNode(); text; text = texts.nextNode()) {
  const parent = text.parentElement;
  if (!shown(parent) || parent.closest("svg, pre, .args, textarea, dialog, .problems")) continue;
  const words = parent.closest("button, .tag") ? [/.+/gs] : [/(?<![^\s(+−])[\d,.]+(?![^\s),.:;])/g];
  for (const word of text.data.matchAll(words[0])) {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    if (lines(range.getClientRects()) > 1) found.push(`${JSON.stringify(word[0])} wraps in ${told(parent)}`);
  }
}

// Buttons of a row beside each other.
for (const actions of document.querySelectorAll("td .actions")) {
  const buttons = [...actions.querySelectorAll("button")].filter(shown).map((b) => b.getBoundingClientRect());
  if (lines(buttons) > 1) found.push(`on end: ${told(actions)}`);
}

// Nothing stands out of its box. A table may scroll in its own.
for (const box of document.querySelectorAll("td, th, .figure, .card, .tag, button, li, .head, .bar, header *")) {
  const style = getComputedStyle(box);
  if (!shown(box) || style.display === "inline" || style.position === "absolute" || style.overflowX !== "visible") continue;
  if (box.scrollWidth > box.clientWidth + 1) found.push(`${box.scrollWidth} wide of ${box.clientWidth}: ${told(box)}`);
}

// Nothing lies over anything else.
const boxes = [...document.querySelectorAll(".figure, .actions button, form.bar > *, .bar > button, .bar > label, header > *, section > *")]
  .filter(shown).map((element) => [element, element.getBoundingClientRect()]);
boxes.forEach(([one, a], at) => {
  for (const [other, b] of boxes.slice(at + 1)) {
    const apart = a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
    if (!apart && !one.contains(other) && !other.contains(one)) found.push(`${told(one)} lies over ${told(other)}`);
  }
});

// A name has some width, however long it is: else its row fills the window.
for (const row of document.querySelectorAll("tbody tr")) {
  const { height } = row.getBoundingClientRect();
  if (innerWidth > 832 && height > 500) found.push(`a row is ${height} high: ${told(row)}`);
}
return [...new Set(found)].slice(0, 20);
