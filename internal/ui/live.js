// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

"use strict";

// The page works without this script. With it, the page is loaded again when the server says that something has changed: what the reader
// has opened stays open, and the focus stays where it is.
(() => {
  let busy = false;
  let again = false;
  const note = document.querySelector("#live");
  const name = (d) => (d.closest("section")?.id ?? "") + d.querySelector("summary").textContent;
  const refresh = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const open = new Set([...document.querySelectorAll("details[open]")].map(name));
      const focus = document.activeElement?.outerHTML;
      for (const part of ["header", "main"]) {
        const now = page.querySelector(part);
        for (const d of now.querySelectorAll("details")) {
          d.open = open.has(name(d));
        }
        document.querySelector(part).replaceWith(document.adoptNode(now));
      }
      note.dataset.version = page.querySelector("#live").dataset.version;
      [...document.querySelectorAll("main a, main button, main summary, main [tabindex]")].find((e) => e.outerHTML === focus)?.focus();
    } catch (error) {
      lost();
    }
    busy = false;
    if (again) {
      again = false;
      refresh();
    }
  };
  const lost = () => {
    note.textContent = "✗ " + note.dataset.lost + " " + new Date().toLocaleTimeString();
  };
  // Browsers keep few connections to a host, so one page alone listens to the server, and lets the others know.
  const channel = new BroadcastChannel("kubediag");
  let listens = false;
  let state = "";
  let latest = 0;
  // A number is the version of the server's state: a page that is older is loaded again.
  const show = (message) => {
    if (message === "live") {
      note.textContent = "● " + note.dataset.live;
    } else if (message === "lost") {
      lost();
    } else if (message > note.dataset.version) {
      refresh();
    }
  };
  const report = (message) => {
    if (typeof message === "number") {
      latest = message;
    } else {
      state = message;
    }
    show(message);
    channel.postMessage(message);
  };
  channel.onmessage = ({ data }) => {
    if (data !== "hello") {
      show(data);
    } else if (listens) {
      channel.postMessage(state);
      channel.postMessage(latest);
    }
  };
  channel.postMessage("hello");
  navigator.locks.request("kubediag", () => new Promise(() => {
    listens = true;
    const events = new EventSource("/events");
    events.onopen = () => report("live");
    events.onmessage = ({ data }) => report(Number(data));
    events.onerror = () => report("lost");
  }));
})();
