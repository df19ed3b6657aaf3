// How does code that writes inline styles live with a policy that forbids them?
//
// xterm.js puts its colours and cell sizes into style elements, and 24-bit colours into style attributes. The policy forbids
// both as they could come from markup; what a script sets by name it allows. So the one is turned into the other.

/** From now on, for the whole page: nothing else here makes style elements. */
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

/** What is written into it becomes a sheet of the document, for as long as it is there. */
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
