// Words, numbers and elements. Text reaches the page through textContent only; nothing here reads markup.
"use strict";
const K3 = (() => {
  const words = {};
  let language = "en";

  /** The words of one language, by key. */
  function strings(name, table) {
    words[name] = table;
  }

  const sayings = {};
  /**
   * Sentences of the rules and the planner in another language, by the sentence: one that was reworded is shown as it is.
   * {name} stands for one word, {name*} for any text, {name,} and {name;} for lists; what stands there is looked up too.
   */
  function sentences(name, table) {
    const all = Object.entries(table);
    const forms = all.filter(([text]) => text.includes("{")).map(([text, said]) => form(text, said));
    sayings[name] = { whole: new Map(all), forms: forms.sort((a, b) => b.weight - a.weight), found: new Map() };
  }

  const PLACE = /\{(\w+[*,;]?)\}/;
  function form(text, said) {
    const parts = text.split(PLACE);
    const source = parts.map((part, at) => (at % 2 ? (/\w$/.test(part) ? "(\\S+?)" : "(.+?)") : part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")));
    const names = parts.filter((part, at) => at % 2);
    const weight = parts.filter((part, at) => at % 2 === 0).join("").length;
    return { pattern: new RegExp(`^${source.join("")}$`), names, said, weight };
  }

  /** A sentence in the page's language; as it is where there is none. */
  function said(text) {
    const here = sayings[language];
    if (!here || !text || text.length > 2000) return text;
    if (!here.found.has(text)) here.found.set(text, lookedUp(here, text) || text);
    return here.found.get(text);
  }

  /** Sentences may come without their full stop. */
  function lookedUp({ whole, forms }, text) {
    if (whole.has(text)) return whole.get(text);
    if (whole.has(`${text}.`)) return whole.get(`${text}.`).replace(/。$/, "");
    return filled(forms, text) || filled(forms, `${text}.`).replace(/。$/, "");
  }

  function filled(forms, text) {
    for (const { pattern, names, said: to } of forms) {
      const match = pattern.exec(text);
      if (!match) continue;
      const values = Object.fromEntries(names.map((name, at) => [name, placed(name, match[at + 1])]));
      return to.replace(/\{(\w+[*,;]?)\}/g, (whole_, name) => values[name]);
    }
    return "";
  }

  const placed = (name, text) => (/[,;]$/.test(name) ? listed(text, name.at(-1)) : said(text));

  /** Parts that are said one by one: "TP8, spec none", "model card; recipe". */
  const listed = (text, mark) => (sayings[language] ? text.split(`${mark} `).map(said).join({ ",": "，", ";": "；" }[mark]) : text);

  /** A text in the page's language; {names} stand for values. */
  function t(key, values) {
    const text = (words[language] && words[language][key]) ?? (words.en && words.en[key]) ?? key;
    if (!values) return text;
    return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
  }

  /** Whether there is a text for this key. */
  function has(key) {
    return Boolean(words[language] && key in words[language]);
  }

  function speak(name) {
    if (name in words) language = name;
    document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  }

  /** An element with attributes and children; `on...` are listeners, a string child is text. */
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "text") made.textContent = value;
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat()) {
      if (child === null || child === undefined || child === "") continue;
      made.append(child);
    }
    return made;
  }

  /** Text that comes from the engines' rules or a planner: data, in another language where that is known. */
  function data(text, tag = "span", attributes = {}, shown = said(text)) {
    const pieces = shown.split("`").map((piece, at) => (at % 2 ? el("code", { text: piece }) : piece));
    return el(tag, { translate: "no", lang: shown === text ? "en" : document.documentElement.lang, ...attributes }, pieces);
  }

  function fill(node, ...children) {
    node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  }

  const drawn = {};
  /** Draw a part of the page only when what it shows, or the language, is another. */
  function once(name, value, draw) {
    const now = language + JSON.stringify(value);
    if (drawn[name] === now) return;
    drawn[name] = now;
    draw();
  }

  const $ = (id) => document.getElementById(id);

  /** A link to a rule's source; plain text where there is no address for it. Only https is followed. */
  function source(text, url) {
    const shown = listed(text, ";");
    if (!url || !url.startsWith("https://")) return data(text, "span", {}, shown);
    return el("a", { href: url, rel: "noreferrer noopener", target: "_blank", translate: "no", lang: shown === text ? "en" : null, text: shown });
  }

  /** "rule, source, date" of a reason. */
  function origin(reason) {
    return el("span", { class: "origin" }, source(reason.source, reason.url), reason.date ? [t("comma"), el("span", { class: "nowrap", text: reason.date })] : "");
  }

  /** Between two sentences. */
  const gap = () => (language === "zh" ? "" : " ");

  /** What went wrong, where, and what to do next. */
  const trouble = ({ message, where, next }) => t(where ? "trouble.where" : "trouble", { where, what: said(message), next: next ? said(next) : "" });

  const number = (value, digits = 0) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const gb = (bytes, digits = 1) => `${number(bytes / 1e9, digits)} GB`;
  const tokens = (count) => {
    if (count >= 2 ** 20 && count % 2 ** 20 === 0) return `${count / 2 ** 20}M`;
    if (count >= 1024 && count % 1024 === 0) return `${count / 1024}K`;
    return number(count);
  };

  const closed = () => {
    const any = Boolean($("notices").firstChild);
    fill($("notices"));
    return any;
  };

  let timer = 0;
  /** Tell the reader something for a while, at the top of the page; several lines stay until they are closed. */
  function notice(lines, action) {
    const close = closed;
    clearTimeout(timer);
    fill(
      $("notices"),
      el(
        "div",
        { class: "notice" },
        el("div", { class: "notice-text" }, lines.map((line) => el("p", {}, line))),
        action ? el("button", { type: "button", class: "tool", text: action.text, onclick: () => (close(), action.run()) }) : null,
        el("button", { type: "button", class: "tool", text: t("close"), onclick: close }),
      ),
    );
    if (lines.length === 1 && !action) timer = setTimeout(close, 6000);
  }

  let quiet = 0;
  /** Tell a screen reader something once things are at rest: a slider that is moved does not read the page aloud. */
  function tell(text) {
    clearTimeout(quiet);
    quiet = setTimeout(() => {
      if (document.documentElement.hasAttribute("aria-busy")) tell(text);
      else if ($("told").textContent !== text) $("told").textContent = text;
    }, 700);
  }

  /** Put a text on the clipboard and say on the button whether it is there. */
  async function copy(text, button) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = copyOld(text);
    }
    button.textContent = t(done ? "copied" : "copy.failed");
    tell(button.textContent);
    setTimeout(() => (button.textContent = t(button.dataset.t)), 1600);
    return done;
  }

  /** For pages from a file, where browsers keep the clipboard's newer interface back. */
  function copyOld(text) {
    const area = el("textarea", { class: "away", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    const focused = document.activeElement;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (focused) focused.focus();
    return done;
  }

  function download(name, text) {
    const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    const link = el("a", { href: address, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  /** Where the mouse was last. What comes to lie under one that rests, because something scrolled, was not pointed at. */
  let rests = "";
  const place = (event) => `${event.screenX} ${event.screenY}`;
  document.addEventListener("pointermove", (event) => (rests = place(event)), true);

  /** Do this when the mouse comes to an element by its own movement. */
  function pointed(element, then) {
    element.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && place(event) !== rests && then());
  }

  const kept = {
    get(name) {
      try {
        return localStorage.getItem(`k3-${name}`);
      } catch {
        return null;
      }
    },
    set(name, value) {
      try {
        localStorage.setItem(`k3-${name}`, value);
      } catch {
        // A browser that keeps nothing still shows the page.
      }
    },
  };

  return {
    strings, sentences, said, listed, t, has, speak, el, data, fill, $, source, origin, trouble, gap, number, gb, tokens, notice, closed, tell, copy, download, pointed, kept, once,
    get language() {
      return language;
    },
    facts: null,
    about(value) {
      K3.facts = value;
    },
  };
})();
