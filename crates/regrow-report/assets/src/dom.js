// The only way in which the page makes elements: by name, with text. There is no innerHTML, so that a key called
// "<script>" is a text like any other.

/** Makes an element. `on` has listeners, `text` its text; what is `undefined`, `null` or `false` is left out. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Puts these children in the place of all that an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** A list of facts: names and values, without those that have no value. */
export function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(el("dt", { text: name }), el("dd", {}, value));
  }
  return list;
}
