// Live parts, keyboard, copying. Every page works without this file.
"use strict";

// --- Live: the page's own URL as an event stream; what has changed is put in place.
const live = document.querySelector("[data-live]");
const lost = document.getElementById("lost");
const SILENT = 25; // seconds without a message; a server that lives sends one more often
let source = null;
let watch = 0;

function connect() {
  if (!live || source || document.hidden) return;
  source = new EventSource(location.href);
  listen();
  source.onmessage = (event) => {
    listen();
    const known = problems();
    for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
    if (problems() !== known) announce();
  };
  source.onerror = () => {
    lost.textContent = "The connection is lost: these figures no longer change. Trying again …";
    if (source.readyState === EventSource.CLOSED) again();
  };
}

// A connection that was cut without a word ends by this.
function listen() {
  clearTimeout(watch);
  watch = setTimeout(() => {
    lost.textContent = `No news for ${SILENT} s: these figures are old. Trying again …`;
    again();
  }, SILENT * 1000);
}

// After one to 2.5 seconds, another time for each page: not all come at once.
function again() {
  disconnect();
  setTimeout(connect, 1000 + 1500 * Math.random());
}

function disconnect() {
  clearTimeout(watch);
  if (source) source.close();
  source = null;
}

// A screen reader says the problems when the list of them changes, not when a figure in it does.
function problems() {
  return [...document.querySelectorAll("[data-problem]")].map((item) => item.dataset.problem).sort().join("\n");
}

function announce() {
  const items = [...document.querySelectorAll("#problems li, #problems p")];
  document.getElementById("news").textContent = items.map((item) => item.textContent).join(". ");
}

function replace(id, html) {
  const place = document.getElementById(id);
  if (!place) return;
  const made = document.createElement("template");
  made.innerHTML = html;
  morph(place, made.content);
}

// Changes `old` into `next` node by node, so that focus, selection and open details stay.
function morph(old, next) {
  const had = [...old.childNodes];
  const wanted = [...next.childNodes];
  wanted.forEach((node, at) => {
    const there = had[at];
    if (!there) return old.append(node);
    if (there.nodeType !== node.nodeType || there.nodeName !== node.nodeName) return there.replaceWith(node);
    if (node.nodeType !== Node.ELEMENT_NODE) {
      if (there.nodeValue !== node.nodeValue) there.nodeValue = node.nodeValue;
      return;
    }
    attributes(there, node);
    morph(there, node);
  });
  had.slice(wanted.length).forEach((node) => node.remove());
}

const KEPT = new Set(["open", "checked"]); // what the user has changed

function attributes(old, next) {
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !KEPT.has(name) && old.className !== "at") old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) !== value && !KEPT.has(name)) old.setAttribute(name, value);
  }
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);

// --- Copying: a click on an id.
document.addEventListener("click", async (event) => {
  const id = event.target.closest("[data-copy]");
  if (!id) return;
  await navigator.clipboard.writeText(id.dataset.copy);
  id.classList.add("copied");
  setTimeout(() => id.classList.remove("copied"), 1500);
});

// --- Keyboard
let goes = false;
const typing = (target) => target.closest("input:not([type=checkbox]), textarea, select");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const key = event.key;
  if (goes) {
    goes = false;
    const link = document.querySelector(`nav [data-key="${CSS.escape(key)}"]`);
    if (link) return link.click();
  }
  if (key === "g") goes = true;
  else if (key === "/") act(event, () => document.getElementById("search").focus());
  else if (key === "?") act(event, () => document.getElementById("help").showModal());
  else if (key === "j") act(event, () => step(1));
  else if (key === "k") act(event, () => step(-1));
  else if (key === "x") act(event, select);
  else if ("rc".includes(key)) act(event, () => document.querySelector(`main [data-press=${key}]`)?.click());
});

function act(event, does) {
  event.preventDefault();
  does();
}

const rows = () => [...document.querySelectorAll("main tbody tr")];

function step(by) {
  const all = rows();
  const now = all.findIndex((row) => row.classList.contains("at"));
  const next = all[Math.min(all.length - 1, Math.max(0, now + by))];
  if (!next) return;
  if (now >= 0) all[now].classList.remove("at");
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
  const target = next.querySelector("a, button, input");
  if (target) target.focus();
}

function select() {
  const box = document.querySelector("tr.at input[type=checkbox]");
  if (box) box.click();
}

// --- A box in a table's head selects all rows.
document.addEventListener("change", (event) => {
  if (!event.target.matches("thead input[type=checkbox]")) return;
  const table = event.target.closest("table");
  for (const box of table.querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
});
