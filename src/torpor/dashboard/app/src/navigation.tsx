// Where is somebody on the page, and how do they get elsewhere?

import type { ComponentChildren } from "preact";
import { kept } from "./observable.ts";
import { path, place, type Place } from "./routes.ts";

export const here = kept<Place>(place(location.pathname));

export function go(to: Place): void {
  history.pushState(null, "", path(to));
  moved();
  scrollTo(0, 0);
  // What is read and typed next is the new page's.
  document.getElementById("content")?.focus({ preventScroll: true });
}

function moved(): void {
  here.set(place(location.pathname));
}

window.addEventListener("popstate", moved);

interface LinkProps {
  to: Place;
  class?: string;
  current?: boolean;
  label?: string;
  children: ComponentChildren;
}

/** A real link, so that a new tab works as everywhere; a plain click changes only what changes. */
export function Link({ to, children, current, label, ...rest }: LinkProps) {
  const follow = (event: MouseEvent): void => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={path(to)} onClick={follow} aria-current={current ? "page" : undefined} aria-label={label} {...rest}>
      {children}
    </a>
  );
}
