// Keeps a page up to date: fetches the same page again, and replaces the parts that differ.
(() => {
  const current = document.querySelector("nav.pages [aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "center" });
  // A look at many partitions takes long.
  const LONGEST_MS = 60000;
  const main = document.querySelector("main[data-every]");
  if (!main) return;
  const button = document.getElementById("watch");
  const said = document.getElementById("watched");
  let stopped = false;
  let timer = 0;
  const shown = new Map();
  // What the server said that it has sent.
  let tag = "";

  const openOf = (part) => [...part.querySelectorAll("details")].map((each) => each.open);

  const replace = (before, after) => {
    const open = openOf(before);
    const within = before.contains(document.activeElement) ? document.activeElement : null;
    // Somebody types here; a later look replaces it.
    if (within && within.matches("input, select, textarea")) return false;
    const scrolled = [...before.querySelectorAll(".scroll, .table")].map((each) => each.scrollTop);
    const href = within && within.getAttribute("href");
    const number = within ? [...before.querySelectorAll("a, summary, [tabindex]")].indexOf(within) : -1;
    before.replaceChildren(...after.childNodes);
    before.querySelectorAll("[data-t] > title").forEach((title) => title.remove());
    before.querySelectorAll("details").forEach((each, index) => { if (open[index]) each.open = true; });
    before.querySelectorAll(".scroll, .table").forEach((each, index) => { each.scrollTop = scrolled[index] || 0; });
    if (!within) return true;
    const links = [...before.querySelectorAll("a, summary, [tabindex]")];
    (links.find((each) => href && each.getAttribute("href") === href) || links[number] || main).focus();
    return true;
  };

  const partsOf = (root) => [...root.querySelectorAll("[data-part]")];
  const idsOf = (root) => partsOf(root).map((each) => each.id).join(" ");

  const upToDate = () => {
    if (said.dataset.stale) { said.textContent = "up to date"; delete said.dataset.stale; }
  };

  const look = async () => {
    if (document.hidden) return;
    const answer = await fetch(location.href, {
      headers: tag ? { accept: "text/html", "if-none-match": tag } : { accept: "text/html" }, cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(LONGEST_MS),
    });
    // Signed out: the server leads to the form.
    if (answer.redirected) { location.reload(); return; }
    if (answer.status === 304) { upToDate(); return; }
    tag = "";
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (idsOf(found) !== idsOf(document)) {
      // An error has come or gone: what was shown before stays while there is one.
      if (answer.ok) { location.reload(); return; }
      const why = found.querySelector(".alarm h2");
      throw new Error(why ? why.textContent : `status ${answer.status}`);
    }
    let isWhole = true;
    partsOf(found).forEach((after) => {
      const before = document.getElementById(after.id);
      const text = after.innerHTML;
      if (!before || shown.get(after.id) === text) return;
      if (!stopped && replace(before, after)) shown.set(after.id, text); else isWhole = false;
    });
    // A part that was not replaced is asked for again.
    if (isWhole) tag = answer.headers.get("etag") || "";
    upToDate();
  };

  const next = () => {
    clearTimeout(timer);
    if (stopped) return;
    timer = setTimeout(async () => {
      try {
        await look();
      } catch (error) {
        said.dataset.stale = said.dataset.stale || new Date().toLocaleTimeString();
        const why = error.name === "Error" ? error.message : "the server has not answered";
        if (!stopped) said.textContent = `not up to date since ${said.dataset.stale}: ${why}`;
      }
      next();
    }, Number(main.dataset.every));
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    stopped = !stopped;
    button.textContent = stopped ? "Continue" : "Pause";
    said.textContent = stopped ? "paused" : said.dataset.stale ? `not up to date since ${said.dataset.stale}` : "up to date";
    next();
  });
  document.addEventListener("visibilitychange", next);
  next();
})();
