// The page on paper: what was chosen, the memory with every byte, the whole command and the reason of each part.
"use strict";
(() => {
  const { t, el, fill, $ } = K3;
  let closed = [];

  addEventListener("beforeprint", () => {
    fill($("sheet"), el("h2", { text: t("sheet") }), K3.command.sheet(), el("p", { class: "hint" }, el("code", { translate: "no", text: location.href })));
    closed = [...document.querySelectorAll(".verdict-card details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    fill($("sheet"));
    for (const one of closed) one.open = false;
  });
})();
