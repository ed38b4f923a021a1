// Builds elements. Data gets onto the page here and only here, always as text, never as markup.

/** el("p.note", {title: "…"}, "text", child): a tag with classes, attributes, listeners (on…) and children. */
export function el(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  set(node, attributes);
  add(node, children);
  return node;
}

export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, v]) => node.style.setProperty(key, v));
    else if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else if (value === true) node.setAttribute(name, "");
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Sets text only where it differs: an unchanged line keeps selection and focus, and speaks no second time. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function fill(node, ...children) {
  node.replaceChildren();
  add(node, children);
}

/** Makes `parent` hold one child per item, in order, reusing children by key so that focus and expansion stay. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const focused = document.activeElement;
  items.forEach((item, place) => {
    const key = String(keyOf(item));
    const child = old.get(key) ?? Object.assign(make(item), {});
    child.dataset.key = key;
    old.delete(key);
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
    update?.(child, item);
  });
  old.forEach((child) => child.remove());
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

export function icon(name) {
  return el(`i.pic.${name}`, { "aria-hidden": "true" });
}

/** Calls `use` with the element of this id, now or as soon as the page has it. */
export function whenThere(id, use) {
  const node = document.getElementById(id);
  if (node) return use(node);
  const watch = new MutationObserver(() => {
    const late = document.getElementById(id);
    if (late) {
      watch.disconnect();
      use(late);
    }
  });
  watch.observe(document.documentElement, { childList: true, subtree: true });
}
