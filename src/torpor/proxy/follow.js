"use strict";
// Shows the status of a workspace as it changes, and opens the workspace when it is ready. It only reads: an open tab starts no workspace.
(() => {
  const at = (id) => document.getElementById(id);
  const main = document.querySelector("main");
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const say = (element, words) => { if (element.textContent !== words) element.textContent = words; };
  let after = main.dataset.after;
  let failures = 0;
  const MOST_TRIES = 4;

  function showSteps(steps) {
    const list = at("steps");
    list.hidden = steps.length === 0;
    steps.forEach((step, index) => {
      const item = list.children[index] || list.appendChild(document.createElement("li"));
      say(item, step.words);
      item.dataset.state = step.state;
      if (step.state === "now") item.setAttribute("aria-current", "step"); else item.removeAttribute("aria-current");
    });
    while (list.children.length > steps.length) list.lastChild.remove();
  }

  function show(told) {
    document.title = told.title;
    say(at("title"), told.title);
    say(at("words"), told.words);
    main.dataset.moving = told.moving ? "yes" : "no";
    const bar = at("bar");
    bar.hidden = !told.moving;
    if (told.progress === null) bar.removeAttribute("value"); else bar.value = told.progress;
    showSteps(told.steps);
    at("error").hidden = !told.error;
    say(at("error"), told.error || "");
    at("wake").hidden = !told.can_wake;
    at("note").hidden = !told.moving;
    at("rest").hidden = told.moving;
  }

  function stop(title, words) {
    document.title = title;
    say(at("title"), title);
    say(at("words"), words);
    main.dataset.moving = "no";
    for (const id of ["bar", "steps", "note", "error", "rest"]) at(id).hidden = true;
    at("wake").hidden = false;
    say(at("wake"), "Reload");
  }

  // Each retry is a request that keeps the workspace awake, so a forgotten tab must give up after a few.
  function triesSoFar() {
    try {
      const last = JSON.parse(sessionStorage.getItem("torpor-tries") || "{}");
      const tries = Date.now() - (last.at || 0) < 600000 ? last.tries : 0;
      sessionStorage.setItem("torpor-tries", JSON.stringify({ tries: tries + 1, at: Date.now() }));
      return tries;
    } catch {
      return MOST_TRIES;
    }
  }

  async function follow() {
    if (main.dataset.again) {
      const tries = triesSoFar();
      if (tries >= MOST_TRIES) return stop(document.title, "Several retries failed.");
      await wait(1000 * Number(main.dataset.again) * 2 ** tries);
    }
    for (;;) {
      let told;
      try {
        const answer = await fetch("/.torpor/standing?after=" + encodeURIComponent(after), { cache: "no-store" });
        if (answer.status === 401) return stop("You are signed out", "Sign in again to continue.");
        if (answer.status === 403 || answer.status === 404) return stop("This workspace is no longer available", "It was deleted or renamed, or is no longer shared with you.");
        if (!answer.ok) throw new Error(String(answer.status));
        told = await answer.json();
        failures = 0;
      } catch {
        failures += 1;
        if (failures > 1) say(at("words"), "Torpor does not respond. Retrying \u2026");
        await wait(Math.min(10000, 300 * 2 ** failures));
        after = "";
        continue;
      }
      if (told.ready) return location.reload();
      after = told.after;
      show(told);
    }
  }

  follow();
})();
