// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

"use strict";

// The page works without this script. With it, the page is loaded again when the server says that something has changed: what the reader
// has opened stays open, and the focus stays where it is.
(() => {
  let busy = false;
  let again = false;
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
  const note = document.querySelector("#live");
  const lost = () => {
    note.textContent = "✗ " + note.dataset.lost + " " + new Date().toLocaleTimeString();
  };
  // Browsers keep few connections to a host, so one page alone listens to the server, and lets the others know.
  const channel = new BroadcastChannel("kubediag");
  let listens = false;
  let state = "";
  const show = (message) => {
    if (message === "live") {
      note.textContent = "● " + note.dataset.live;
    } else if (message === "lost") {
      lost();
    } else if (message === "changed") {
      refresh();
    }
  };
  const report = (message) => {
    state = message === "changed" ? state : message;
    show(message);
    channel.postMessage(message);
  };
  channel.onmessage = ({ data }) => {
    if (data !== "hello") {
      show(data);
    } else if (listens) {
      channel.postMessage(state);
    }
  };
  channel.postMessage("hello");
  navigator.locks.request("kubediag", () => new Promise(() => {
    listens = true;
    let missed = performance.now() > 3000; // another page has listened until now
    const events = new EventSource("/events");
    events.onopen = () => {
      report("live");
      if (missed) {
        report("changed");
      }
      missed = true;
    };
    events.onmessage = () => report("changed");
    events.onerror = () => report("lost");
  }));
})();
