// What does the page do?
//
// It asks for the list again and again, and shows what it is told: nothing here decides what a workspace may do, beyond
// which buttons make sense. Everything that others wrote becomes text, never markup.

const API = "/api/v1";
const SHOWN_MS = 1000;
const HIDDEN_MS = 5000;
const ASK_PATIENCE_MS = 10000;

// ── the words ──

const OPERATION_SAYS = {
  PROVISIONING: "Making an empty home",
  RESTORING: "Restoring its home from the archive",
  STARTING: "Starting its program",
  STOPPING: "Stopping its program",
  ARCHIVING: "Putting its home into the archive",
  CREATE_EMPTY_ARCHIVE: "Writing an empty archive",
  DELETING: "Removing what is left of it",
};

// Which wishes can be made, by the wish there is now. A wish may change at any time, whatever is under way.
const WISHES = {
  RUNNING: ["stop", "archive"],
  STANDBY: ["start", "archive"],
  ARCHIVED: ["start"],
  DELETED: [],
};

const ACTIONS = {
  PENDING: (wishes) => [...wishes, "delete"],
  ARCHIVED: (wishes) => [...wishes, "delete"],
  STANDBY: (wishes) => [...wishes, "delete"],
  RUNNING: (wishes) => ["open", ...wishes, "delete"],
  ERROR: () => ["recover", "delete"],
  DELETING: () => [],
  DELETED: () => [],
};

const WISH_OF = { start: "RUNNING", stop: "STANDBY", archive: "ARCHIVED" };

// ── asking ──

class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
    this.code = body.code;
    this.body = body;
  }
}

// No answer at all: nothing is wrong with what was asked.
class Away extends Error {}

const AWAY = "Torpor does not answer just now. Try that again once the list is live.";

async function ask(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-Torpor"] = "page";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  let text;
  try {
    answer = await fetch(API + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(ASK_PATIENCE_MS),
    });
    text = await answer.text();
  } catch {
    throw new Away(AWAY);
  }
  // The front answers these by itself, in plain text, when there is nobody behind it.
  if ([502, 504].includes(answer.status)) throw new Away(AWAY);
  const isJson = /json/.test(answer.headers.get("Content-Type") || "");
  let said = null;
  try {
    said = isJson && text ? JSON.parse(text) : null;
  } catch {
    // Half an answer is none.
  }
  if (!answer.ok) throw new Problem(answer.status, said || {});
  return said;
}

async function askForAll(path) {
  const items = [];
  let cursor = null;
  do {
    const page = await ask("GET", cursor ? `${path}?cursor=${encodeURIComponent(cursor)}` : path);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return items;
}

// ── showing ──

const $ = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// What has not changed is not touched, so that a selection, the focus and a screen reader stay where they are.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

function showNotice(text) {
  setText($("notice-text"), text || "");
  setHidden($("notice"), !text);
}

function showWrong(node, text) {
  setText(node, text || "");
  setHidden(node, !text);
}

// ── the door ──

// "unknown" until the first answer, then "in" or "out".
let signed = "unknown";

function showDoor(text) {
  const wasOut = signed === "out";
  signed = "out";
  setHidden($("house"), true);
  setHidden($("sign-out"), true);
  setHidden($("user"), true);
  setHidden($("door"), false);
  if (text) showWrong($("door-error"), text);
  if (wasOut) return;
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close("cancel");
  showNotice("");
  cards.forEach((card) => card.node.remove());
  cards.clear();
  $("username").focus();
}

function showHouse() {
  if (signed === "in") return;
  signed = "in";
  setHidden($("door"), true);
  setHidden($("house"), false);
  setHidden($("sign-out"), false);
  showWrong($("door-error"), "");
  ask("GET", "/me").then(
    (me) => {
      setText($("user"), me?.username || me?.name || "");
      setHidden($("user"), !$("user").textContent);
    },
    () => {}, // a name in the corner is worth no message
  );
}

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  button.disabled = true;
  showWrong($("door-error"), "");
  try {
    await ask("POST", "/login", { username: $("username").value, password: $("password").value });
    event.target.reset();
    signed = "unknown";
    await lookAgain();
  } catch (error) {
    showWrong($("door-error"), error.message);
    $("password").select();
  } finally {
    button.disabled = false;
  }
});

$("sign-out").addEventListener("click", async () => {
  try {
    await ask("POST", "/logout");
    showDoor();
  } catch (error) {
    tell(error);
  }
});

$("notice-close").addEventListener("click", () => showNotice(""));

// Say what went wrong with something that was pressed.
function tell(error) {
  if (error instanceof Problem && error.status === 401) showDoor("Your session has ended. Sign in again.");
  else showNotice(error.message);
}

// ── looking ──

let timer = 0;
let looking = null;

// Look now; several who ask at once share one look.
function look() {
  looking ??= lookOnce().finally(() => {
    looking = null;
    clearTimeout(timer);
    timer = setTimeout(look, document.hidden ? HIDDEN_MS : SHOWN_MS);
  });
  return looking;
}

async function lookOnce() {
  if (signed === "out") return;
  try {
    const items = await askForAll("/workspaces");
    showHouse();
    showList(items);
    setHidden($("connection"), true);
  } catch (error) {
    if (error instanceof Problem && error.status === 401) {
      setHidden($("connection"), true);
      showDoor(signed === "in" ? "Your session has ended. Sign in again." : "");
    } else {
      setHidden($("connection"), false);
    }
  }
}

// After something was done: what it changed may not be in a look that began before.
async function lookAgain() {
  await looking;
  await look();
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

// ── the list ──

const cards = new Map();

function showList(items) {
  const list = $("list");
  const present = new Set(items.map((item) => item.id));
  for (const [id, card] of cards) {
    if (present.has(id)) continue;
    card.node.remove();
    cards.delete(id);
  }
  items.forEach((workspace, at) => {
    if (!cards.has(workspace.id)) cards.set(workspace.id, makeCard());
    const card = cards.get(workspace.id);
    if (list.children[at] !== card.node) list.insertBefore(card.node, list.children[at] || null);
    showCard(card, workspace);
  });
  setHidden($("empty"), items.length > 0 || !$("create").hidden);
}

function makeCard() {
  const node = $("workspace").content.firstElementChild.cloneNode(true);
  const card = { node, workspace: null, busy: null, told: "", toldAt: 0 };
  for (const button of node.querySelectorAll("button[data-action]")) {
    button.addEventListener("click", () => act(card, button.dataset.action));
  }
  node.querySelector("details").addEventListener("toggle", () => {
    card.told = "";
    showStory(card);
  });
  return card;
}

function showCard(card, workspace) {
  card.workspace = workspace;
  const { node } = card;
  const moving = workspace.operation !== "NONE";
  if (node.dataset.phase !== workspace.phase) node.dataset.phase = workspace.phase;
  if (node.dataset.workspace !== workspace.name) node.dataset.workspace = workspace.name;
  node.toggleAttribute("data-moving", moving);
  setText(node.querySelector("h3"), workspace.name);
  setText(node.querySelector(".template"), workspace.template);
  setText(node.querySelector(".phase .word"), workspace.phase);

  setHidden(node.querySelector(".moving"), !moving);
  if (moving) {
    const known = typeof workspace.progress === "number";
    const progress = node.querySelector("progress");
    const says = OPERATION_SAYS[workspace.operation] || workspace.operation;
    setText(node.querySelector(".moving p"), known ? `${says} · ${workspace.progress}\u00a0%` : `${says}…`);
    progress.setAttribute("aria-label", says);
    if (!known) progress.removeAttribute("value");
    else if (progress.value !== workspace.progress || !progress.hasAttribute("value")) progress.value = workspace.progress;
  }

  const { error } = workspace;
  setHidden(node.querySelector(".trouble"), !error);
  if (error) {
    setText(node.querySelector(".trouble strong"), error.reason);
    const hope = error.is_terminal === false ? " It is tried again by itself." : "";
    setText(node.querySelector(".trouble p"), error.message + hope);
  }

  const offered = ACTIONS[workspace.phase](WISHES[workspace.desired_state]);
  const hadFocus = node.contains(document.activeElement) ? document.activeElement : null;
  for (const control of node.querySelectorAll("[data-action]")) {
    setHidden(control, !offered.includes(control.dataset.action));
    if (control.dataset.action === "open") {
      if (control.getAttribute("href") !== workspace.url) control.setAttribute("href", workspace.url);
      control.setAttribute("aria-label", `Open ${workspace.name} in a new tab`);
    } else {
      control.setAttribute("aria-label", `${control.textContent} ${workspace.name}`);
    }
  }
  setHidden(node.querySelector(".actions"), offered.length === 0);
  // A button that goes away must not take the keyboard's place in the page with it.
  if (hadFocus?.hidden) {
    (node.querySelector(".actions:not([hidden]) [data-action]:not([hidden])") || node.querySelector("summary")).focus();
  }
  showStory(card);
}

// ── doing ──

async function act(card, action) {
  if (card.busy) return;
  const { id } = card.workspace;
  showNotice("");
  card.busy = action;
  try {
    await DOES[action](`/workspaces/${encodeURIComponent(id)}`, card.workspace);
  } catch (error) {
    tell(error);
  } finally {
    card.busy = null;
  }
  await lookAgain();
}

const wish = (action) => (path) => ask("PATCH", path, { desired_state: WISH_OF[action] });

const DOES = {
  start: wish("start"),
  stop: wish("stop"),
  archive: wish("archive"),
  delete: askAndDelete,
  recover: askAndRecover,
};

// What the dialog was closed with.
function answered(dialog) {
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

async function askAndDelete(path, workspace) {
  setText($("delete-title"), `Delete ${workspace.name}?`);
  setText($("delete-dialog").querySelector("code"), `torpor undelete ${workspace.name}`);
  $("purge").checked = false;
  if ((await answered($("delete-dialog"))) !== "delete") return;
  await ask("DELETE", `${path}?purge=${$("purge").checked}`);
}

async function askAndRecover(path, workspace) {
  try {
    await ask("POST", `${path}/recover`, {});
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== "say_which_way") throw error;
    const chosen = await askWhichWay(workspace, error);
    if (chosen) await ask("POST", `${path}/recover`, chosen);
  }
}

async function askWhichWay(workspace, problem) {
  setText($("recover-title"), `How should ${workspace.name} go on?`);
  setText($("recover-detail"), problem.message);
  const keys = problem.body.archive_keys || [];
  const ways = [
    ...keys.map((key, at) => [{ archive_key: key }, `${at === 0 ? "the latest archive" : "an older archive"} (${key})`]),
    [{ empty: true }, "an empty home"],
  ];
  $("ways").replaceChildren(
    ...ways.map(([, words], at) =>
      element(
        "label",
        { className: "check" },
        element("input", { type: "radio", name: "way", value: String(at), required: true, checked: at === 0 && keys.length > 0 }),
        element("span", { textContent: words }),
      ),
    ),
  );
  if ((await answered($("recover-dialog"))) !== "recover") return null;
  const chosen = $("ways").querySelector("input:checked");
  return chosen ? ways[Number(chosen.value)][0] : null;
}

// "Not now" must work without an answer to the question.
for (const button of document.querySelectorAll('dialog button[value="cancel"]')) button.formNoValidate = true;

// ── the story of one ──

const STORY_MS = 5000;

async function showStory(card) {
  const { workspace, node } = card;
  if (!node.querySelector("details").open) return;
  const { phase, operation, desired_state: desired, error } = workspace;
  const key = JSON.stringify([phase, operation, desired, error]);
  if (card.told === key && Date.now() - card.toldAt < STORY_MS) return;
  card.told = key;
  card.toldAt = Date.now();
  const path = `/workspaces/${encodeURIComponent(workspace.id)}`;
  const story = node.querySelector(".story");
  try {
    const [explanation, history] = await Promise.all([ask("GET", `${path}/explain`), ask("GET", `${path}/operations`)]);
    const before = story.textContent;
    const told = [...explained(explanation), ...remembered(history.items)];
    if (before !== told.map((part) => part.textContent).join("")) story.replaceChildren(...told);
  } catch (wrong) {
    if (!story.firstChild) story.replaceChildren(element("p", { className: "wrong", textContent: wrong.message }));
  }
}

function explained({ summary, lines = [], ways_out: ways = [] }) {
  const told = [element("p", { className: "summary", textContent: summary })];
  if (lines.length) told.push(element("ul", {}, ...lines.map((line) => element("li", { textContent: line }))));
  if (ways.length) {
    told.push(element("h4", { textContent: "What you can do" }));
    const pairs = ways.flatMap(({ command, means }) => [
      element("dt", {}, element("code", { textContent: command })),
      element("dd", { textContent: means }),
    ]);
    told.push(element("dl", {}, ...pairs));
  }
  return told;
}

const WHEN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function remembered(items) {
  if (!items.length) return [];
  const rows = items.map((item) =>
    element(
      "tr",
      {},
      element("td", { textContent: item.attempt > 1 ? `${item.kind} (try ${item.attempt})` : item.kind }),
      element("td", { textContent: item.outcome || "under way", className: item.outcome || "" }),
      element("td", { textContent: item.started_at ? WHEN.format(new Date(item.started_at)) : "" }),
      element("td", { textContent: typeof item.seconds === "number" ? `${item.seconds.toFixed(1)} s` : "" }),
      element("td", { className: "words", textContent: [item.reason, item.message].filter(Boolean).join(": ") }),
    ),
  );
  const heads = ["Operation", "Outcome", "Began", "Took", ""].map((text) => element("th", { textContent: text, scope: "col" }));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const scroll = element("div", { className: "scroll", tabIndex: 0 }, table);
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "History");
  return [element("h4", { textContent: "History" }), scroll];
}

// ── a new one ──

let templates = [];

function showCreate(open) {
  setHidden($("create"), !open);
  $("new").setAttribute("aria-expanded", String(open));
  setHidden($("empty"), open || cards.size > 0);
}

function showTemplate() {
  const chosen = templates.find((template) => template.name === $("template").value);
  setText($("template-hint"), chosen?.description || "");
  setHidden($("command-field"), !chosen?.takes_command);
  $("command").required = Boolean(chosen?.takes_command);
}

$("new").addEventListener("click", async () => {
  if (!$("create").hidden) {
    showCreate(false);
    return;
  }
  try {
    const answer = await ask("GET", "/templates");
    templates = Array.isArray(answer) ? answer : answer.items;
  } catch (error) {
    tell(error);
    return;
  }
  const before = $("template").value;
  $("template").replaceChildren(
    ...templates.map(({ name, title }) => element("option", { value: name, textContent: title || name })),
  );
  const first = templates.find((template) => !template.takes_command) || templates[0];
  $("template").value = templates.some(({ name }) => name === before) ? before : first?.name;
  showWrong($("create-error"), "");
  showTemplate();
  showCreate(true);
  $("name").focus();
});

$("template").addEventListener("change", showTemplate);

$("create-cancel").addEventListener("click", () => {
  showCreate(false);
  $("new").focus();
});

$("create").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button[type=submit]");
  showWrong($("create-error"), "");
  const wanted = { name: $("name").value, template: $("template").value };
  try {
    if (!$("command-field").hidden) wanted.command = words($("command").value);
    button.disabled = true;
    await ask("POST", "/workspaces", wanted);
    $("name").value = "";
    $("command").value = "";
    showCreate(false);
    $("new").focus();
    await lookAgain();
  } catch (error) {
    if (error instanceof Problem && error.status === 401) tell(error);
    else showWrong($("create-error"), error.message);
  } finally {
    button.disabled = false;
  }
});

// A command line as a shell would divide it, with quotes and backslashes and nothing else.
function words(line) {
  const found = [];
  let word = null;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const letter = line[at];
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && '"\\'.includes(line[at + 1])) word += line[(at += 1)];
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (/\s/.test(letter)) {
      if (word !== null) found.push(word);
      word = null;
    } else if (letter === "\\" && at + 1 < line.length) {
      word = (word ?? "") + line[(at += 1)];
    } else {
      word = (word ?? "") + letter;
    }
  }
  if (quote) throw new Error(`A quote (${quote}) in the command is not closed.`);
  if (word !== null) found.push(word);
  return found;
}

look();
