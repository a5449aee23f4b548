// Keeps the page live: a server-sent event says that the ledger has changed, and htmx then draws
// the parts again that the page names. A hidden page has no connection, because browsers allow six
// to one host, for all tabs together.
"use strict";
(() => {
  const sign = document.getElementById("live");
  if (!sign) return;
  let seen = document.body.dataset.version;
  let source = null;

  const show = (words, isLive) => {
    sign.classList.toggle("on", isLive);
    const text = sign.querySelector(".words");
    if (text.textContent !== words) text.textContent = words;
  };

  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource("/events?since=" + encodeURIComponent(seen));
    source.onopen = () => show("live", true);
    source.onerror = () => show("not connected", false);
    source.addEventListener("ledger", (event) => {
      seen = event.data;
      document.body.dispatchEvent(new CustomEvent("ledger"));
    });
  };

  const close = () => {
    if (source) source.close();
    source = null;
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
})();
