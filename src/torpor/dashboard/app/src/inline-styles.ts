// Make libraries that write inline styles work under the content security policy.
//
// xterm.js writes its colours and cell sizes to style elements, and 24-bit colours to style attributes. The policy forbids
// both because markup could contain them. It allows style sheets and properties that a script sets, so this module uses those.

/** Changes the whole page; no other code on it creates style elements. */
export function withoutInlineStyles(): void {
  const create = document.createElement.bind(document) as (name: string, options?: ElementCreationOptions) => HTMLElement;
  document.createElement = ((name: string, options?: ElementCreationOptions) =>
    name === "style" ? standIn(create("span")) : create(name, options)) as typeof document.createElement;

  const set = Element.prototype.setAttribute;
  HTMLSpanElement.prototype.setAttribute = function (name: string, value: string): void {
    if (name === "style") this.style.cssText = value;
    else set.call(this, name, value);
  };
}

/** An element whose text becomes a style sheet of the document until the element is removed. */
function standIn(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  element.hidden = true;
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(element, "textContent", { get: () => "", set: (text: string) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}
