// The header and navigation around every page.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { usePendingAction } from "../hooks.ts";
import { useObservable } from "../observable.ts";
import { connection, workspaceList, signOut } from "../session.ts";
import { currentRoute, Link } from "../navigation.tsx";
import { announcement } from "../announcements.ts";
import type { Route } from "../routes.ts";
import { nextTheme, theme, type Theme } from "../theme.ts";
import type { Me } from "../api-types.ts";
import { Button, ErrorMessage } from "./controls.tsx";
import { Icon, type IconName } from "./Icon.tsx";
import { SleepBanners } from "./SleepBanners.tsx";

interface Tab {
  to: Route;
  label: string;
  icon: IconName;
  pages: Route["page"][];
  admin?: true;
}

const TABS: Tab[] = [
  { to: { page: "workspaces" }, label: "Workspaces", icon: "home", pages: ["workspaces", "workspace", "shell"] },
  { to: { page: "activity" }, label: "Activity", icon: "activity", pages: ["activity"] },
  { to: { page: "system" }, label: "System", icon: "system", pages: ["system"], admin: true },
  { to: { page: "users" }, label: "Users", icon: "users", pages: ["users"], admin: true },
];

const THEME_LABEL: Record<Theme, [IconName, string]> = {
  system: ["system_theme", "Theme: system"],
  light: ["light", "Theme: light"],
  dark: ["dark", "Theme: dark"],
};

export function Frame({ me, children }: { me: Me; children: ComponentChildren }) {
  const at = useObservable(currentRoute);
  const is = useObservable(connection);
  const [icon, label] = THEME_LABEL[useObservable(theme)];
  return (
    <div class="frame" data-page={at.page}>
      <a class="skip" href="#content">
        Skip to content
      </a>
      <header class="top">
        <Link class="brand" to={{ page: "workspaces" }} label="Torpor: all workspaces">
          <img src="/page/logo.svg" alt="" width="34" height="34" />
          <span>Torpor</span>
        </Link>
        <nav class="tabs" aria-label="Pages">
          {TABS.filter((tab) => !tab.admin || me.is_admin).map((tab) => (
            <Link key={tab.label} to={tab.to} current={tab.pages.includes(at.page)}>
              <Icon name={tab.icon} />
              <span>{tab.label}</span>
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
      <Announcements />
      <SleepBanners me={me} />
      <div id="content" tabIndex={-1}>
        {children}
      </div>
    </div>
  );
}

/** For screen readers only. */
function Announcements() {
  const now = useObservable(workspaceList);
  const before = useRef(now);
  const [text, setText] = useState("");
  useEffect(() => {
    const next = announcement(before.current, now);
    before.current = now;
    if (next) setText(next);
  }, [now]);
  return (
    <p class="unseen" role="status">
      {text}
    </p>
  );
}

function UserMenu({ me }: { me: Me }) {
  const [open, setOpen] = useState(false);
  const pending = usePendingAction();
  const menu = useRef<HTMLDivElement>(null);
  const at = useObservable(currentRoute);
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
        <button type="button" onClick={() => void pending.run("out", signOut)}>
          <Icon name="out" />
          <span>Sign out</span>
        </button>
        <ErrorMessage>{pending.error}</ErrorMessage>
      </div>
    </div>
  );
}
