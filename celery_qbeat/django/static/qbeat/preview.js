// The preview while typing. Without this file there is a button that does the same.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const box = document.getElementById("qb-preview");
  if (!box) return;
  const form = box.closest("form");
  const body = box.querySelector(".qb-preview-body");
  const watched = ["schedule_kind", "schedule", "timezone", "days_only", "days_skip", "dates_skip", "start_us", "end_us",
    "enabled", "worker"];
  let timer, asked = 0;

  async function show() {
    const mine = ++asked;
    box.classList.add("qb-waiting");
    try {
      const answer = await fetch(box.dataset.address, {
        method: "POST", body: new FormData(form), headers: { Accept: "application/json" }, credentials: "same-origin",
      });
      if (!answer.ok) throw new Error(answer.statusText);
      const preview = await answer.json();
      if (mine !== asked) return;
      body.innerHTML = preview.html;
      box.classList.add("qb-live");
    } catch (error) {
      if (mine === asked) box.classList.remove("qb-live");
    } finally {
      if (mine === asked) box.classList.remove("qb-waiting");
    }
  }

  form.addEventListener("input", (event) => {
    if (!watched.includes(event.target.name)) return;
    clearTimeout(timer);
    timer = setTimeout(show, 250);
  });
  show();
});
