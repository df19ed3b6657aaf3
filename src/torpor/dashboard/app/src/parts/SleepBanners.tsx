// Banners for workspaces that go to sleep soon.

import { may } from "../actions.ts";
import { usePendingAction, useNow } from "../hooks.ts";
import { useObservable } from "../observable.ts";
import { workspaceList } from "../session.ts";
import { currentRoute, Link } from "../navigation.tsx";
import { exactly } from "../time.ts";
import { bannerText, sleepingSoon, type Warned } from "../sleep-warnings.ts";
import type { Me } from "../api-types.ts";
import { keepAwake } from "../commands.ts";
import { Button, ErrorMessage } from "./controls.tsx";
import { Icon } from "./Icon.tsx";

// More banners would hide the page.
const MOST_SHOWN = 3;

export function SleepBanners({ me }: { me: Me }) {
  const soon = sleepingSoon(useObservable(workspaceList), me, useObservable(currentRoute));
  if (soon.length === 0) return null;
  const more = soon.length - MOST_SHOWN;
  return (
    <section class="banners" aria-label="Workspaces that go to sleep soon">
      {soon.slice(0, MOST_SHOWN).map((one) => (
        <SleepBanner key={one.id} workspace={one} me={me} />
      ))}
      {more > 0 && <p class="dim">and {more} more</p>}
    </section>
  );
}

function SleepBanner({ workspace, me }: { workspace: Warned; me: Me }) {
  const now = useNow(1000);
  const pending = usePendingAction();
  return (
    <div class="banner" data-sleeping-soon={workspace.name}>
      <Icon name="dark" />
      <p>
        <Link to={{ page: "workspace", name: workspace.name }}>{workspace.name}</Link>{" "}
        <time dateTime={workspace.sleeps_at} title={exactly(workspace.sleeps_at)}>
          {bannerText(workspace.sleeps_at, now)}
        </time>
      </p>
      {may(workspace, me, "HOLD") && (
        <Button weight="strong" busy={pending.busy !== ""} onClick={() => void pending.run("hold", () => keepAwake(workspace))}>
          Keep awake for 1 hour
        </Button>
      )}
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
    </div>
  );
}
