// The current route, and links that change it.

import type { ComponentChildren } from "preact";
import { observable } from "./observable.ts";
import { pathOf, routeOf, type Route } from "./routes.ts";

export const currentRoute = observable<Route>(routeOf(location.pathname));

export function go(to: Route): void {
  history.pushState(null, "", pathOf(to));
  onMove();
  scrollTo(0, 0);
  // Keyboard and screen reader continue on the new page.
  document.getElementById("content")?.focus({ preventScroll: true });
}

function onMove(): void {
  currentRoute.set(routeOf(location.pathname));
}

window.addEventListener("popstate", onMove);

interface LinkProps {
  to: Route;
  class?: string;
  current?: boolean;
  label?: string;
  children: ComponentChildren;
}

/** A real link, so that opening it in a new tab works. A plain click changes the route without loading the page. */
export function Link({ to, children, current, label, ...rest }: LinkProps) {
  const follow = (event: MouseEvent): void => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={pathOf(to)} onClick={follow} aria-current={current ? "page" : undefined} aria-label={label} {...rest}>
      {children}
    </a>
  );
}
