// What stands around every page?

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useDoing } from "../hooks.ts";
import { useKept } from "../observable.ts";
import { connection, house, signOut } from "../session.ts";
import { here, Link } from "../navigation.tsx";
import { news } from "../announcements.ts";
import type { Place } from "../routes.ts";
import { nextTheme, theme, type Theme } from "../theme.ts";
import type { Me } from "../api-types.ts";
import { Button, Wrong } from "./controls.tsx";
import { Icon, type IconName } from "./Icon.tsx";
import { SleepBanners } from "./SleepBanners.tsx";

interface Tab {
  to: Place;
  says: string;
  icon: IconName;
  pages: Place["page"][];
  admin?: true;
}

const TABS: Tab[] = [
  { to: { page: "workspaces" }, says: "Workspaces", icon: "home", pages: ["workspaces", "workspace", "shell"] },
  { to: { page: "activity" }, says: "Activity", icon: "activity", pages: ["activity"] },
  { to: { page: "system" }, says: "System", icon: "system", pages: ["system"], admin: true },
  { to: { page: "users" }, says: "Users", icon: "users", pages: ["users"], admin: true },
];

const THEME_SAYS: Record<Theme, [IconName, string]> = {
  system: ["system_theme", "Colours: as the system has them"],
  light: ["light", "Colours: light"],
  dark: ["dark", "Colours: dark"],
};

export function Frame({ me, children }: { me: Me; children: ComponentChildren }) {
  const at = useKept(here);
  const is = useKept(connection);
  const [icon, label] = THEME_SAYS[useKept(theme)];
  return (
    <div class="frame" data-page={at.page}>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <header class="top">
        <Link class="brand" to={{ page: "workspaces" }} label="Torpor: all workspaces">
          <img src="/page/logo.svg" alt="" width="34" height="34" />
          <span>Torpor</span>
        </Link>
        <nav class="tabs" aria-label="Pages">
          {TABS.filter((tab) => !tab.admin || me.is_admin).map((tab) => (
            <Link key={tab.says} to={tab.to} current={tab.pages.includes(at.page)}>
              <Icon name={tab.icon} />
              <span>{tab.says}</span>
            </Link>
          ))}
        </nav>
        <p class="connection" role="status" data-is={is}>
          {is === "reconnecting" && (
            <>
              <span class="dot" />
              reconnecting…
            </>
          )}
        </p>
        <Button icon={icon} weight="quiet" label={label} onClick={nextTheme} />
        <UserMenu me={me} />
      </header>
      <News />
      <SleepBanners me={me} />
      <div id="content" tabIndex={-1}>
        {children}
      </div>
    </div>
  );
}

/** Said, not shown. */
function News() {
  const now = useKept(house);
  const before = useRef(now);
  const [said, setSaid] = useState("");
  useEffect(() => {
    const next = news(before.current, now);
    before.current = now;
    if (next) setSaid(next);
  }, [now]);
  return (
    <p class="unseen" role="status">
      {said}
    </p>
  );
}

function UserMenu({ me }: { me: Me }) {
  const [open, setOpen] = useState(false);
  const doing = useDoing();
  const menu = useRef<HTMLDivElement>(null);
  const at = useKept(here);
  useEffect(() => setOpen(false), [at]);
  useEffect(() => {
    if (!open) return;
    const away = (event: Event): void => {
      if (!(event.target instanceof Node) || !menu.current?.contains(event.target)) setOpen(false);
    };
    document.addEventListener("pointerdown", away);
    document.addEventListener("focusin", away);
    return () => {
      document.removeEventListener("pointerdown", away);
      document.removeEventListener("focusin", away);
    };
  }, [open]);
  return (
    <div
      class="user-menu"
      ref={menu}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !open) return;
        setOpen(false);
        menu.current?.querySelector("button")?.focus();
      }}
    >
      <button
        type="button"
        class="button quiet user"
        aria-expanded={open}
        aria-controls="user-menu"
        onClick={() => setOpen(!open)}
      >
        <span class="face" aria-hidden="true">
          {me.username.slice(0, 1)}
        </span>
        <span class="username">{me.username}</span>
      </button>
      <div id="user-menu" class="menu" hidden={!open}>
        <Link to={{ page: "account" }}>
          <Icon name="user" />
          <span>Account</span>
        </Link>
        <a href="/docs" target="_blank" rel="noopener">
          <Icon name="open" />
          <span>API reference</span>
        </a>
        <button type="button" onClick={() => void doing.run("out", signOut)}>
          <Icon name="out" />
          <span>Sign out</span>
        </button>
        <Wrong>{doing.wrong}</Wrong>
      </div>
    </div>
  );
}
